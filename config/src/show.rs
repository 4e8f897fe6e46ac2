//! What `config show` prints: each key, its value and where the value came from, as a table or as JSON.
//!
//! Apart because it is a view of what was read, not part of reading it. Must not know: any key.

use std::fmt;

use serde_json::{Value, json};

use crate::problem::Origin;

/// One key as it was said and understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `section.key`.
    pub key: String,
    /// As said: typed if it came from a file, else text.
    pub said: Value,
    /// What it came to, where that differs from what was said: an "auto" resolved, a home folder written out.
    pub resolved: Option<String>,
    pub origin: Origin,
    /// Type, unit and range.
    pub takes: String,
}

/// All keys in the order of the default file.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown(pub Vec<Row>);

/// How `config show` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Table,
    Json,
}

impl Shown {
    /// Writes every setting to the standard output. A reader that has seen enough and left is no error.
    ///
    /// # Errors
    /// When the output cannot be written for another reason.
    pub fn print(&self, form: Form) -> std::io::Result<()> {
        let text = match form {
            Form::Table => self.to_string(),
            Form::Json => format!("{:#}\n", self.to_json()),
        };
        match std::io::Write::write_all(&mut std::io::stdout().lock(), text.as_bytes()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    /// An array of `{key, value, resolved, from: {kind, name}}`; `resolved` is null where it is the value itself.
    pub fn to_json(&self) -> Value {
        let row = |row: &Row| {
            let name = match &row.origin {
                Origin::Default => Value::Null,
                Origin::File(path) => json!(path.to_string_lossy()),
                Origin::Variable(name) | Origin::Flag(name) => json!(name),
            };
            json!({
                "key": row.key,
                "value": row.said,
                "resolved": row.resolved,
                "from": { "kind": row.origin.kind(), "name": name },
            })
        };
        Value::Array(self.0.iter().map(row).collect())
    }
}

impl fmt::Display for Shown {
    /// Three columns; the value as resolved, with what was said behind it in brackets where that differs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |row: &Row| match &row.resolved {
            Some(resolved) => format!("{resolved} ({})", row.said),
            None => row.said.to_string(),
        };
        let width = |text: &dyn Fn(&Row) -> usize| self.0.iter().map(text).max().unwrap_or(0);
        let keys = width(&|row| row.key.chars().count());
        let values = width(&|row| value(row).chars().count());
        for row in &self.0 {
            writeln!(f, "{:keys$}  {:values$}  {}", row.key, value(row), row.origin)?;
        }
        Ok(())
    }
}
