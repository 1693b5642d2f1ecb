//! The line of a request, as text, as JSON or in the combined log format.

use std::fmt::Write;
use std::time::Duration;

use super::AccessFormat;
use super::record::{AccessEnd, AccessFields};
use crate::line_log::{is_unprintable, push_common_log_time, push_milliseconds, push_number, push_rfc3339};

/// Longest text of a client in a line.
pub(super) const MAX_FIELD_BYTES: usize = 256;

impl AccessFields {
    pub(super) fn write_line(&self, format: AccessFormat, out: &mut String) {
        match format {
            AccessFormat::Text => self.write_text(out),
            AccessFormat::Json => self.write_json(out),
            AccessFormat::Combined => self.write_combined(out),
        }
        out.push('\n');
    }

    /// The outcome as a word; an error has its code.
    fn outcome(&self) -> &'static str {
        match self.end {
            Some(AccessEnd::Cancelled) => "cancelled",
            Some(AccessEnd::Disconnected) => "disconnected",
            _ if self.error.is_some() => "error",
            _ if self.is_tool_error => "tool_error",
            _ if self.status.is_some_and(|status| status >= 400) => "rejected",
            _ => "ok",
        }
    }

    /// The time that was neither the upstream's nor waiting for input.
    fn own_time(&self) -> Duration {
        self.total.saturating_sub(self.upstream_time)
    }

    /// `TIME  INFO access: PRINCIPAL "CLIENT" "VERB PATH" METHOD "TARGET" UPSTREAM STATUS OUTCOME …`.
    fn write_text(&self, out: &mut String) {
        push_rfc3339(out, self.time);
        out.push_str("  INFO access: ");
        match &self.identity {
            Some(identity) => push_word(out, &identity.principal),
            None => out.push('-'),
        }
        for (text, is_quoted) in [
            (self.client.as_deref(), true),
            (self.text(self.http), true),
            (self.text(self.method), false),
            (self.text(self.target), true),
        ] {
            out.push(' ');
            match text {
                None => out.push('-'),
                Some(text) if is_quoted => push_quoted(out, text),
                Some(text) => push_word(out, text),
            }
        }
        out.push(' ');
        push_word(out, self.upstream.as_deref().unwrap_or("-"));
        out.push(' ');
        match self.status {
            Some(status) => push_number(out, status),
            None => out.push('-'),
        }
        out.push(' ');
        out.push_str(self.outcome());
        if let Some(code) = self.error {
            out.push_str(" code=");
            push_number(out, code);
        }
        out.push_str(" total=");
        push_milliseconds(out, self.total);
        out.push_str("ms rialto=");
        push_milliseconds(out, self.own_time());
        out.push_str("ms upstream=");
        push_milliseconds(out, self.upstream_time);
        out.push_str("ms");
        if !self.waited.is_zero() {
            out.push_str(" waited=");
            push_milliseconds(out, self.waited);
            out.push_str("ms");
        }
        out.push_str(" in=");
        push_number(out, self.bytes_in);
        out.push_str(" out=");
        push_number(out, self.bytes_out);
        for (name, id) in [(" request=", self.request_id()), (" trace=", self.text(self.trace_id))] {
            if let Some(id) = id {
                out.push_str(name);
                push_word(out, id);
            }
        }
    }

    /// `ADDRESS - PRINCIPAL [TIME] "VERB PATH VERSION" STATUS BYTES "-" "USER AGENT"`, for programs that read such logs.
    fn write_combined(&self, out: &mut String) {
        match self.combined.address {
            Some(address) => _ = write!(out, "{address}"),
            None => out.push('-'),
        }
        out.push_str(" - ");
        let is_plain = |letter: &char| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\');
        let principal = self.identity.as_ref().map_or("-", |identity| &*identity.principal);
        let letters = principal.chars().take(MAX_FIELD_BYTES);
        out.extend(letters.map(|letter| if is_plain(&letter) { letter } else { '_' }));
        out.push_str(" [");
        push_common_log_time(out, self.time);
        out.push_str("] ");
        match self.text(self.http) {
            Some(http) => push_quoted(out, &format!("{http} {:?}", self.combined.version.unwrap_or_default())),
            None => out.push_str("\"-\""),
        }
        for number in [self.status.map(u64::from), Some(self.bytes_out).filter(|bytes| *bytes > 0)] {
            out.push(' ');
            match number {
                Some(number) => push_number(out, number),
                None => out.push('-'),
            }
        }
        out.push_str(" \"-\" ");
        push_quoted(out, self.text(self.combined.user_agent).unwrap_or("-"));
    }

    fn write_json(&self, out: &mut String) {
        out.push_str("{\"timestamp\":\"");
        push_rfc3339(out, self.time);
        out.push_str("\",\"level\":\"INFO\",\"fields\":{\"message\":\"request\"");
        let principal = self.identity.as_ref().map(|identity| &*identity.principal);
        for (name, text) in [
            ("principal", principal),
            ("client", self.client.as_deref()),
            ("http", self.text(self.http)),
            ("method", self.text(self.method)),
            ("target", self.text(self.target)),
            ("upstream", self.upstream.as_deref()),
        ] {
            push_member(out, name, text);
        }
        if let Some(status) = self.status {
            push_name(out, "status");
            push_number(out, status);
        }
        push_member(out, "outcome", Some(self.outcome()));
        if let Some(code) = self.error {
            push_name(out, "code");
            push_number(out, code);
        }
        for (name, time) in
            [("total_ms", self.total), ("rialto_ms", self.own_time()), ("upstream_ms", self.upstream_time)]
        {
            push_name(out, name);
            push_milliseconds(out, time);
        }
        if !self.waited.is_zero() {
            push_name(out, "waited_ms");
            push_milliseconds(out, self.waited);
        }
        push_name(out, "bytes_in");
        push_number(out, self.bytes_in);
        push_name(out, "bytes_out");
        push_number(out, self.bytes_out);
        push_member(out, "request", self.request_id());
        push_member(out, "trace", self.text(self.trace_id));
        out.push_str("},\"target\":\"access\"}");
    }
}

fn push_member(out: &mut String, name: &str, text: Option<&str>) {
    if let Some(text) = text {
        push_name(out, name);
        push_quoted(out, text);
    }
}

/// The name of a further member, up to its value.
fn push_name(out: &mut String, name: &str) {
    out.push_str(",\"");
    out.push_str(name);
    out.push_str("\":");
}

/// A text as it is where it is one plain word, otherwise in quotes.
fn push_word(out: &mut String, text: &str) {
    if !text.is_empty() && text != "-" && is_plain_from(b'!', text) {
        out.push_str(&text[..text.len().min(MAX_FIELD_BYTES)]);
    } else if text == "-" {
        out.push('-');
    } else {
        push_quoted(out, text);
    }
}

/// Whether all bytes are printable ASCII from `least` on and need no escape. All are looked at, so that many are at a time.
fn is_plain_from(least: u8, text: &str) -> bool {
    let is_plain = |byte: u8| (byte >= least) & (byte <= b'~') & (byte != b'"') & (byte != b'\\');
    text.bytes().fold(true, |all, byte| all & is_plain(byte))
}

/// A text in quotes, bounded, with escapes as in JSON for everything that could end a line or a quotation.
fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    let text = &text[..text.floor_char_boundary(MAX_FIELD_BYTES)];
    if is_plain_from(b' ', text) {
        out.push_str(text);
    } else {
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                letter if is_unprintable(letter) => {
                    let _ = write!(out, "\\u{:04x}", u32::from(letter));
                }
                letter => out.push(letter),
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_clients_stay_on_one_line_and_within_their_bound() {
        for (text, quoted) in [
            ("plain", "\"plain\""),
            ("a b", "\"a b\""),
            ("\r\n\t\u{0}\u{85}\u{2028}\"\\", r#""\u000d\u000a\u0009\u0000\u0085\u2028\"\\""#),
            ("häh", "\"häh\""),
        ] {
            let mut out = String::new();
            push_quoted(&mut out, text);
            assert_eq!(out, quoted);
            assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        }
        let mut out = String::new();
        push_quoted(&mut out, &"ä".repeat(1 << 20));
        assert_eq!(out.len(), MAX_FIELD_BYTES + 2);
        for (text, word) in [("tools/call", "tools/call"), ("-", "-"), ("", "\"\""), ("a b", "\"a b\"")] {
            let mut out = String::new();
            push_word(&mut out, text);
            assert_eq!(out, word);
        }
    }
}
