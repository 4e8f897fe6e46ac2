//! A model's chat template: messages in, prompt text out.
//!
//! Apart because the template language is a world of its own. Must not know: HTTP bodies, tokens.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;
use thiserror::Error as ThisError;

/// Why a template cannot be used or rendered.
#[derive(Debug, ThisError)]
pub enum ChatError {
    #[error("the model has no chat template")]
    Absent,
    #[error("the chat template is not well formed: {0}")]
    Parse(String),
    /// The template refused the conversation itself, in its own words.
    #[error("the chat template refused the messages: {0}")]
    Refused(String),
    #[error("the chat template failed: {0}")]
    Render(String),
}

/// A template and the special tokens it may write.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Option<Environment<'static>>,
    /// Such as `bos_token`, by key.
    specials: Vec<(String, String)>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja` if there is one, else the key of
    /// tokenizer_config.json, a string or a list of named ones of which `default` is taken.
    ///
    /// # Errors
    /// When the template does not parse. Without a template, rendering is what fails.
    pub fn new(config: &Json, specials_map: &Json, jinja: Option<&str>) -> Result<ChatTemplate, ChatError> {
        let keys = ["bos_token", "eos_token", "unk_token", "pad_token"];
        let special = |key: &str| special_text(&config[key]).or_else(|| special_text(&specials_map[key]));
        let specials = keys.into_iter().filter_map(|key| Some((key.to_owned(), special(key)?))).collect();
        let source = jinja.or_else(|| source_of(&config["chat_template"]));
        let environment = source.map(environment).transpose()?;
        Ok(ChatTemplate { environment, specials })
    }

    /// Whether there is a template.
    pub fn is_present(&self) -> bool {
        self.environment.is_some()
    }

    /// Prompt text of a context such as {messages, tools, add_generation_prompt}; its keys win over the specials.
    ///
    /// # Errors
    /// When there is no template, or it fails on or refuses this context.
    pub fn render(&self, context: &Json) -> Result<String, ChatError> {
        let environment = self.environment.as_ref().ok_or(ChatError::Absent)?;
        let template = environment.get_template(NAME).map_err(classify)?;
        let mut merged = serde_json::Map::new();
        merged.extend(self.specials.iter().map(|(key, text)| (key.clone(), Json::from(text.as_str()))));
        merged.extend(
            context.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())),
        );
        template.render(Value::from(Serde(&merged))).map_err(classify)
    }
}

/// A special token is written as a string or as an object with `content`.
fn special_text(value: &Json) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

fn source_of(value: &Json) -> Option<&str> {
    if let Some(source) = value.as_str() {
        return Some(source);
    }
    let named = value.as_array()?;
    let default = named.iter().find(|entry| entry["name"] == "default").or_else(|| named.first())?;
    default["template"].as_str()
}

fn environment(source: &str) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    // What Hugging Face's renderer sets: block tags take no line of their own.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| ChatError::Parse(error.to_string()))?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.set_recursion_limit(64);
    environment
        .add_template_owned(NAME, source.to_owned())
        .map_err(|error| ChatError::Parse(error.to_string()))?;
    Ok(environment)
}

/// Marks errors that the template raised itself.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(message)))
}

/// As Python's json.dumps with ensure_ascii=False: separators ", " and ": ", or indented; nothing escaped for HTML.
fn tojson(value: Value, options: minijinja::value::Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Further options of json.dumps, such as ensure_ascii, are taken and have no effect.
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    let json = serde_json::to_value(&value).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    write_json(&json, indent, 0, &mut text);
    Ok(Value::from_safe_string(text))
}

fn write_json(json: &Json, indent: Option<usize>, depth: usize, out: &mut String) {
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => out.push_str(&json.to_string()),
        Json::Array(items) => {
            let item = |item: &Json, out: &mut String| write_json(item, indent, depth + 1, out);
            write_items(items.iter(), ['[', ']'], indent, depth, out, item);
        }
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json), out: &mut String| {
                out.push_str(&Json::from(key.as_str()).to_string());
                out.push_str(": ");
                write_json(value, indent, depth + 1, out);
            };
            write_items(entries.iter(), ['{', '}'], indent, depth, out, entry);
        }
    }
}

fn write_items<T>(
    items: impl ExactSizeIterator<Item = T>,
    brackets: [char; 2],
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
    write: impl Fn(T, &mut String),
) {
    let line = |depth: usize| {
        indent.map_or(String::new(), |width| format!("\n{}", " ".repeat(width.min(16) * depth)))
    };
    let separator = if indent.is_some() { "," } else { ", " };
    let empty = items.len() == 0;
    out.push(brackets[0]);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(&line(depth + 1));
        write(item, out);
    }
    if !empty {
        out.push_str(&line(depth));
    }
    out.push(brackets[1]);
}

fn classify(error: Error) -> ChatError {
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return ChatError::Refused(message.clone());
        }
        cause = current.source();
    }
    ChatError::Render(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(source: &str, context: Json, expected: &str) {
        let config =
            json!({ "chat_template": source, "bos_token": "<s>", "eos_token": { "content": "</s>" } });
        let template = ChatTemplate::new(&config, &Json::Null, None).expect("template parses");
        assert_eq!(template.render(&context).expect("template renders"), expected);
    }

    #[test]
    fn templates_render_as_in_python() {
        let messages =
            json!({ "messages": [{ "role": "user", "content": " hi " }], "add_generation_prompt": true });
        let source = "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m['content'].strip() }}]{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}{{ eos_token }}";
        check(source, messages, "<s>[hi]></s>");
        check(
            "{{ t | tojson }}",
            json!({ "t": { "b": [1, "é<\"'"], "a": null } }),
            "{\"b\": [1, \"é<\\\"'\"], \"a\": null}",
        );
        check(
            "{{ t | tojson(indent=2) }}",
            json!({ "t": { "b": [1], "c": [] } }),
            "{\n  \"b\": [\n    1\n  ],\n  \"c\": []\n}",
        );
        check(
            "{% for x in xs %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
            json!({ "xs": [1, 2, 3] }),
            "1",
        );
        check("{{ bos_token }}", json!({ "bos_token": "mine" }), "mine");
        check("{{ text.startswith('a') }} {{ text.split('b')[-1] }}", json!({ "text": "abc" }), "True c");
    }

    #[test]
    fn a_template_is_found_where_folders_keep_it() {
        let config = json!({ "chat_template": [
            { "name": "tool_use", "template": "tools" }, { "name": "default", "template": "default" },
        ] });
        let render = |jinja| {
            let template = ChatTemplate::new(&config, &Json::Null, jinja).expect("template parses");
            template.render(&json!({})).expect("template renders")
        };
        assert_eq!(render(None), "default");
        assert_eq!(render(Some("file")), "file");
        let map = json!({ "bos_token": { "content": "<b>" } });
        let template = ChatTemplate::new(&json!({}), &map, Some("{{ bos_token }}")).expect("template parses");
        assert_eq!(template.render(&json!({})).expect("template renders"), "<b>");
    }

    #[test]
    fn failures_say_whose_they_are() {
        let render = |source: &str| {
            ChatTemplate::new(&json!({}), &Json::Null, Some(source))
                .expect("template parses")
                .render(&json!({}))
        };
        let refused = render("{{ raise_exception('roles must alternate') }}");
        assert!(matches!(refused, Err(ChatError::Refused(message)) if message == "roles must alternate"));
        assert!(matches!(render("{{ 1 // 0 }}"), Err(ChatError::Render(_))));
        let absent = ChatTemplate::new(&Json::Null, &Json::Null, None).expect("absence is no error");
        assert!(matches!(absent.render(&json!({})), Err(ChatError::Absent)));
        let broken = ChatTemplate::new(&Json::Null, &Json::Null, Some("{% if %}"));
        assert!(matches!(broken, Err(ChatError::Parse(_))));
    }
}
