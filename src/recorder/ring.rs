//! A ring of bytes: records one behind the other, of which the oldest are overwritten.

/// What one record says, beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHead {
    /// The call that the record belongs to.
    pub mark: u64,
    /// Nanoseconds since the first use of the clock in this process.
    pub nanos: u64,
    /// Bytes of the body as it passed.
    pub length: u32,
    /// Bytes of the body that follow the head of the message.
    pub kept: u32,
    /// Bytes of the HTTP head, or of whatever precedes the body.
    pub head_length: u16,
    /// The HTTP status, or another number that the kind has.
    pub status: u16,
    /// Wire, way and kind.
    pub tags: [u8; 3],
}

/// Bytes of an encoded [`RecordHead`].
pub const RECORD_HEAD: usize = 32;

/// A ring of records.
#[derive(Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    /// Offset of the oldest record since the ring was made.
    start: u64,
    /// Offset behind the newest record.
    end: u64,
    /// Bytes of records that had no room at all, since the last reading.
    refused: u64,
}

/// What was read of a ring.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RingPart {
    /// Whole records.
    pub bytes: Vec<u8>,
    /// Where the next reading goes on.
    pub next: u64,
    /// Bytes that were overwritten before they were read, or had no room.
    pub lost: u64,
    /// The time up to which every record was read.
    pub complete_to: u64,
}

impl RecordHead {
    fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut out = [0; RECORD_HEAD];
        out[..8].copy_from_slice(&self.mark.to_le_bytes());
        out[8..16].copy_from_slice(&self.nanos.to_le_bytes());
        out[16..20].copy_from_slice(&self.length.to_le_bytes());
        out[20..24].copy_from_slice(&self.kept.to_le_bytes());
        out[24..26].copy_from_slice(&self.head_length.to_le_bytes());
        out[26..28].copy_from_slice(&self.status.to_le_bytes());
        out[28..31].copy_from_slice(&self.tags);
        out
    }

    /// Reads a head; `None` where there are too few bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let part = |at: usize| bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map(u64::from_le_bytes);
        let short = |at: usize| bytes.get(at..at + 2).and_then(|part| part.try_into().ok()).map(u16::from_le_bytes);
        let word = |at: usize| bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_le_bytes);
        Some(Self {
            mark: part(0)?,
            nanos: part(8)?,
            length: word(16)?,
            kept: word(20)?,
            head_length: short(24)?,
            status: short(26)?,
            tags: bytes.get(28..31)?.try_into().ok()?,
        })
    }

    /// Bytes of the whole record.
    pub fn record_length(&self) -> usize {
        RECORD_HEAD + usize::from(self.head_length) + self.kept as usize
    }
}

impl RingPart {
    /// Leaves the records that are younger than a time for the next reading.
    pub fn leave_after(&mut self, time: u64) {
        let mut kept = 0;
        while let Some(head) = RecordHead::decode(&self.bytes[kept..]).filter(|head| head.nanos <= time) {
            kept += head.record_length();
        }
        self.next -= (self.bytes.len() - kept) as u64;
        self.bytes.truncate(kept);
    }
}

impl Ring {
    /// A ring of this many bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity.max(4 * RECORD_HEAD)], start: 0, end: 0, refused: 0 }
    }

    /// Most bytes of a message that one record should have: a ring has room for several.
    pub fn body_limit(&self) -> usize {
        self.bytes.len() / 4
    }

    /// Writes a record whose bytes come in parts. The parts must have as many bytes as the head says; what cannot fit
    /// at all is left out and counted as lost.
    pub fn write(&mut self, head: &RecordHead, parts: &[&[u8]]) {
        let length = head.record_length();
        if length > self.bytes.len() {
            self.refused += length as u64;
            return;
        }
        while self.bytes.len() - self.used() < length {
            self.drop_oldest();
        }
        self.append(&head.encode());
        for part in parts {
            self.append(part);
        }
    }

    /// The records from `offset` on that are not younger than `until`, whole ones only and about `limit` bytes at most.
    pub fn read(&mut self, offset: u64, limit: usize, until: u64) -> RingPart {
        let from = offset.clamp(self.start, self.end);
        let (mut next, mut bytes, mut last) = (from, Vec::new(), 0);
        while next < self.end && bytes.len() < limit {
            let mut head = [0; RECORD_HEAD];
            self.copy(next, &mut head);
            let Some(head) = RecordHead::decode(&head).filter(|head| head.nanos <= until) else { break };
            let (at, length) = (bytes.len(), head.record_length());
            bytes.resize(at + length, 0);
            self.copy(next, &mut bytes[at..]);
            (next, last) = (next + length as u64, head.nanos);
        }
        let complete_to = if bytes.len() < limit { until } else { last };
        let lost = from - offset.min(from) + std::mem::take(&mut self.refused);
        RingPart { bytes, next, lost, complete_to }
    }

    fn used(&self) -> usize {
        usize::try_from(self.end - self.start).unwrap_or(usize::MAX)
    }

    fn drop_oldest(&mut self) {
        let mut head = [0; RECORD_HEAD];
        self.copy(self.start, &mut head);
        let length = RecordHead::decode(&head).map_or(self.used(), |head| head.record_length());
        self.start = (self.start + length as u64).min(self.end);
    }

    fn position(&self, offset: u64) -> usize {
        usize::try_from(offset % self.bytes.len() as u64).unwrap_or(0)
    }

    fn append(&mut self, part: &[u8]) {
        let at = self.position(self.end);
        let first = part.len().min(self.bytes.len() - at);
        self.bytes[at..at + first].copy_from_slice(&part[..first]);
        self.bytes[..part.len() - first].copy_from_slice(&part[first..]);
        self.end += part.len() as u64;
    }

    fn copy(&self, offset: u64, out: &mut [u8]) {
        let at = self.position(offset);
        let first = out.len().min(self.bytes.len() - at);
        let rest = out.len() - first;
        out[..first].copy_from_slice(&self.bytes[at..at + first]);
        out[first..].copy_from_slice(&self.bytes[..rest]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(mark: u64, body: &[u8]) -> RecordHead {
        let kept = u32::try_from(body.len()).unwrap();
        RecordHead { mark, nanos: mark * 10, length: kept, kept, head_length: 2, status: 200, tags: [1, 2, 3] }
    }

    fn write(ring: &mut Ring, mark: u64, body: &[u8]) {
        ring.write(&head(mark, body), &[b"ab", body]);
    }

    /// The marks and bodies of records.
    fn records(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some(head) = RecordHead::decode(bytes) {
            let (record, rest) = bytes.split_at(head.record_length());
            found.push((head.mark, record[RECORD_HEAD + 2..].to_vec()));
            bytes = rest;
        }
        found
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut ring = Ring::new(1000);
        for mark in 1..=3 {
            write(&mut ring, mark, format!("body {mark}").as_bytes());
        }
        let part = ring.read(0, 1000, u64::MAX);
        assert_eq!(part.lost, 0);
        assert_eq!(RecordHead::decode(&part.bytes), Some(head(1, b"body 1")));
        assert_eq!(records(&part.bytes).iter().map(|(mark, _)| *mark).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(
            ring.read(part.next, 1000, u64::MAX),
            RingPart { next: part.next, complete_to: u64::MAX, ..RingPart::default() }
        );
        let first = ring.read(0, 1, u64::MAX);
        assert_eq!(records(&first.bytes).len(), 1, "a reading is bounded, and has whole records");
        assert_eq!(records(&ring.read(first.next, 1000, u64::MAX).bytes).len(), 2);
    }

    #[test]
    fn records_are_read_up_to_a_time() {
        let mut ring = Ring::new(1000);
        for mark in 1..=4 {
            write(&mut ring, mark, b"body");
        }
        let mut part = ring.read(0, 1000, 35);
        assert_eq!((records(&part.bytes).len(), part.complete_to), (3, 35));
        part.leave_after(20);
        assert_eq!(records(&part.bytes).len(), 2);
        assert_eq!(records(&ring.read(part.next, 1000, u64::MAX).bytes)[0].0, 3, "what was left is read next");
        let first = ring.read(0, 1, 35);
        assert_eq!((records(&first.bytes).len(), first.complete_to), (1, 10), "more waits behind the limit");
    }

    #[test]
    fn the_oldest_records_are_overwritten_and_counted_as_lost() {
        let mut ring = Ring::new(256);
        let mut expected = Vec::new();
        for mark in 0..1000 {
            let body = vec![u8::try_from(mark % 251).unwrap(); usize::try_from(mark % 50).unwrap()];
            write(&mut ring, mark, &body);
            expected.push((mark, body));
            let part = ring.read(0, 10_000, u64::MAX);
            let found = records(&part.bytes);
            assert_eq!(found, expected[expected.len() - found.len()..], "the newest, byte for byte");
            assert!(part.bytes.len() <= 256 && part.lost + part.bytes.len() as u64 == part.next);
        }
    }

    #[test]
    fn a_record_that_cannot_fit_is_left_out_and_counted_as_lost() {
        let mut ring = Ring::new(256);
        write(&mut ring, 1, b"kept");
        write(&mut ring, 2, &[0; 400]);
        let part = ring.read(0, 1000, u64::MAX);
        assert_eq!(records(&part.bytes), [(1, b"kept".to_vec())]);
        assert_eq!(part.lost, (RECORD_HEAD + 2 + 400) as u64);
        assert_eq!(ring.read(part.next, 1000, u64::MAX).lost, 0, "it is told once");
    }
}
