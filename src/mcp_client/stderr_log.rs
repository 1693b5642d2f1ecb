//! The last lines that children wrote to standard error, by command, for operators.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::target::Command;

/// A line that a child wrote to standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StderrLine {
    /// When it was read.
    pub at: SystemTime,
    /// The line, without its end.
    pub text: String,
}

/// The lines of the children of one command.
struct CommandLines {
    command: Command,
    lines: VecDeque<StderrLine>,
    bytes: usize,
}

/// Lines that are kept for each command.
const MAX_LINES: usize = 200;
/// Bytes that are kept for each command.
const MAX_BYTES: usize = 64 << 10;
/// Commands whose lines are kept; the one that was silent for longest is forgotten first.
const MAX_COMMANDS: usize = 64;

static LOG: Mutex<VecDeque<CommandLines>> = Mutex::new(VecDeque::new());

/// The last lines of the children that were started with this command, oldest first.
pub fn stderr_lines(command: &Command) -> Vec<StderrLine> {
    let log = LOG.lock();
    let known = log.iter().find(|known| known.command == *command);
    known.map(|known| known.lines.iter().cloned().collect()).unwrap_or_default()
}

pub(super) fn keep_line(command: &Command, text: &str) {
    let mut log = LOG.lock();
    let known = log.iter().position(|known| known.command == *command);
    let mut known = known.and_then(|at| log.remove(at)).unwrap_or_else(|| CommandLines {
        command: command.clone(),
        lines: VecDeque::new(),
        bytes: 0,
    });
    known.bytes += text.len();
    known.lines.push_back(StderrLine { at: SystemTime::now(), text: text.to_owned() });
    while known.lines.len() > MAX_LINES || known.bytes > MAX_BYTES {
        known.bytes -= known.lines.pop_front().map_or(known.bytes, |oldest| oldest.text.len());
    }
    log.push_back(known);
    if log.len() > MAX_COMMANDS {
        log.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp_client::Target;

    #[test]
    fn the_last_lines_of_each_command_are_kept() {
        let Target::Command(one) = Target::command("a program of this test", ["x"]) else { unreachable!() };
        let Target::Command(other) = Target::command("a program of this test", ["y"]) else { unreachable!() };
        for number in 0..=MAX_LINES {
            keep_line(&one, &number.to_string());
        }
        let kept = stderr_lines(&one);
        assert_eq!((kept.len(), kept[0].text.as_str()), (MAX_LINES, "1"));
        assert_eq!(stderr_lines(&other), []);
        keep_line(&one, &"x".repeat(MAX_BYTES));
        assert_eq!(stderr_lines(&one).len(), 1);
    }
}
