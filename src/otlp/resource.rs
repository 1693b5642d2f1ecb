//! What every export has around its items: the resource, the scope, and the response that counts rejected items.

use super::protobuf::{FieldValue, MessageWriter, fields};
use super::sender::RejectedItems;

/// Who exports: what all spans and metrics of this process have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedResource(Vec<u8>);

impl EncodedResource {
    /// Encodes the attributes of the resource.
    pub fn new<'a>(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut bytes = Vec::new();
        let mut writer = MessageWriter(&mut bytes);
        for (key, value) in attributes {
            writer.text_attribute(1, key, value);
        }
        Self(bytes)
    }
}

/// An export request: `items` writes each item as field 2, which spans and metrics have in common.
pub fn export_request(
    resource: &EncodedResource,
    expected_bytes: usize,
    items: impl FnOnce(&mut MessageWriter<'_>),
) -> Vec<u8> {
    let mut scope_items = Vec::with_capacity(expected_bytes);
    let mut writer = MessageWriter(&mut scope_items);
    writer.message(1, |scope| {
        scope.text(1, env!("CARGO_PKG_NAME"));
        scope.text(2, env!("CARGO_PKG_VERSION"));
    });
    items(&mut writer);
    let mut request = Vec::with_capacity(scope_items.len() + resource.0.len() + 32);
    MessageWriter(&mut request).message(1, |resource_items| {
        resource_items.bytes(1, &resource.0);
        resource_items.bytes(2, &scope_items);
    });
    request
}

/// What the collector says that it rejected, in the response of an export.
pub(super) fn rejected_items(response: &[u8]) -> RejectedItems {
    let partial_success = fields(response).find_map(|(field, value)| match value {
        FieldValue::Bytes(bytes) if field == 1 => Some(bytes),
        _ => None,
    });
    let mut rejected = RejectedItems::default();
    for (field, value) in fields(partial_success.unwrap_or_default()) {
        match value {
            FieldValue::Number(number) if field == 1 => rejected.count = number,
            FieldValue::Bytes(text) if field == 2 => rejected.why = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    rejected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_success_is_read() {
        let mut response = Vec::new();
        MessageWriter(&mut response).message(1, |partial| {
            partial.number(1, 300);
            partial.fixed_32(7, 1);
            partial.text(2, "too many");
        });
        assert_eq!(rejected_items(&response), RejectedItems { count: 300, why: "too many".to_owned() });
        assert_eq!(rejected_items(b""), RejectedItems::default());
        for cut in 0..response.len() {
            rejected_items(&response[..cut]);
        }
        assert_eq!(rejected_items(&[0xff; 40]).count, 0);
    }
}
