//! What a person sees while a model is pulled: bars on a terminal, lines on standard error, nothing when told to be quiet. Apart
//! because it is the only importer of indicatif here. Must not know what is being done. Standard output stays untouched: its last
//! line is the folder, for scripts.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing at all.
    Quiet,
    /// Lines only: standard error is a file or a pipe.
    Lines,
    /// Lines and bars.
    Terminal,
}

impl Progress {
    /// Bars where standard error is a terminal.
    pub fn of_stderr() -> Progress {
        if std::io::stderr().is_terminal() { Progress::Terminal } else { Progress::Lines }
    }

    /// Says one line.
    pub fn note(self, line: &str) {
        match self {
            Progress::Quiet => {}
            Progress::Lines | Progress::Terminal => eprintln!("{line}"),
        }
    }

    /// A bar over `total_bytes`, which vanishes when it is dropped or finished; hidden unless on a terminal.
    pub fn bar(self, label: &str, total_bytes: u64) -> Bar {
        let target = match self {
            Progress::Quiet | Progress::Lines => ProgressDrawTarget::hidden(),
            Progress::Terminal => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let style = "{msg:28} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is constant and is tested"));
        bar.set_message(label.to_owned());
        Bar(bar)
    }
}

/// A bar on the terminal; clears itself.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The hub's client reports through its own trait.
impl hf_hub::api::Progress for &Bar {
    fn init(&mut self, size: usize, _filename: &str) {
        self.0.set_length(size as u64);
        self.0.set_position(0);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        for progress in [Progress::Quiet, Progress::Lines] {
            progress.bar("tensors", 10).advance(3);
        }
    }
}
