//! Collects the records of all rings of a gateway.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::ring::{RECORD_HEAD, RecordHead, RingPart};
use super::{Detail, Recorder, nanos};

/// Reads the rings of a gateway, one part after another.
#[derive(Debug)]
pub struct Reader {
    recorder: Arc<Recorder>,
    workers: Vec<Handle>,
    /// Where the next reading of each ring begins; the last is that of the shared one.
    offsets: Vec<u64>,
    ring_bytes: usize,
}

/// What was read of all rings.
#[derive(Debug, Default)]
pub struct CollectedRecords {
    /// The parts of the rings, each in its own order.
    pub batches: Vec<RecordBatch>,
    /// Bytes that were overwritten before they were read, or had no room.
    pub lost: u64,
}

/// Whole records, one behind the other.
#[derive(Debug, Default)]
pub struct RecordBatch(Vec<u8>);

/// Most bytes that are read of one ring at a time, so that its worker is not kept from calls.
const READ_LIMIT: usize = 256 << 10;

impl Reader {
    /// Reads the rings of these workers and the shared one.
    pub fn new(recorder: Arc<Recorder>, workers: Vec<Handle>) -> Self {
        let offsets = vec![0; workers.len() + 1];
        Self { recorder, workers, offsets, ring_bytes: 0 }
    }

    /// Makes rings of `bytes` together and records from now on.
    pub async fn open(&mut self, bytes: usize, body_limit: usize, detail: Detail) {
        self.ring_bytes = bytes / (self.workers.len() + 1);
        self.recorder.open(self.ring_bytes, u32::try_from(body_limit).unwrap_or(u32::MAX));
        self.offsets.fill(0);
        self.recorder.set_detail(detail);
        let size = self.ring_bytes;
        self.on_each_worker(move |recorder| recorder.open_here(size)).await;
    }

    /// Records nothing more and frees the rings.
    pub async fn close(&mut self) {
        self.recorder.set_detail(Detail::Off);
        self.on_each_worker(Recorder::free_here).await;
        self.recorder.free_shared();
    }

    /// What is new since the last time, in the order of causes: rings are read one after another, and what came into one of them
    /// meanwhile is left for the next time. Otherwise the answer that a client gives in another request, which is noted in
    /// the ring of that request's worker, could be read before the call that asked for it.
    pub async fn read(&mut self) -> CollectedRecords {
        let until = nanos();
        let mut parts = Vec::with_capacity(self.offsets.len());
        for (worker, offset) in self.workers.iter().zip(&self.offsets) {
            let (recorder, offset) = (Arc::clone(&self.recorder), *offset);
            // A worker that is gone has nothing to tell.
            let read = worker.spawn(async move { recorder.read_here(offset, READ_LIMIT, until) }).await;
            parts.push(read.ok().flatten());
        }
        let shared = self.offsets[self.workers.len()];
        parts.push(self.recorder.read_shared(shared, READ_LIMIT, until));
        let complete_to = parts.iter().flatten().map(|part| part.complete_to).min().unwrap_or(until);
        let mut collected = CollectedRecords::default();
        for (ring, part) in parts.into_iter().enumerate() {
            if let Some(mut part) = part {
                part.leave_after(complete_to);
                self.take(ring, part, &mut collected);
            }
        }
        collected
    }

    fn take(&mut self, ring: usize, part: RingPart, collected: &mut CollectedRecords) {
        self.offsets[ring] = part.next;
        collected.lost += part.lost;
        if !part.bytes.is_empty() {
            collected.batches.push(RecordBatch::new(part.bytes));
        }
    }

    async fn on_each_worker(&self, run: impl Fn(&Recorder) + Clone + Send + 'static) {
        for worker in &self.workers {
            let (recorder, run) = (Arc::clone(&self.recorder), run.clone());
            let _ = worker.spawn(async move { run(&recorder) }).await;
        }
    }
}

impl RecordBatch {
    /// A batch of these records.
    pub fn new(records: Vec<u8>) -> Self {
        Self(records)
    }

    /// The records: what each says, its HTTP head and its body.
    pub fn records(&self) -> impl Iterator<Item = (RecordHead, &[u8], &[u8])> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let head = RecordHead::decode(rest)?;
            let (record, after) = rest.split_at_checked(head.record_length())?;
            rest = after;
            let (text, body) = record[RECORD_HEAD..].split_at(usize::from(head.head_length));
            Some((head, text, body))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Note, NoteKind, Way, Wire, note};
    use crate::workers::Workers;

    #[tokio::test]
    async fn records_of_all_workers_are_read_once_and_rings_are_freed() {
        let workers = Workers::start(2).unwrap();
        let handles = workers.runtimes();
        let recorder = Recorder::new();
        let mut reader = Reader::new(Arc::clone(&recorder), handles.clone());
        reader.open(30_000, 100, Detail::Bodies).await;
        let write = |recorder: &Recorder| {
            let note_of_call =
                Note { wire: Wire::Server, way: Way::Out, kind: NoteKind::Message, status: 0, head: b"h", body: b"b" };
            note(recorder.begin().mark, &note_of_call);
        };
        write(&recorder);
        for handle in &handles {
            let recorder = Arc::clone(&recorder);
            handle.spawn(async move { write(&recorder) }).await.unwrap();
        }
        let collected = reader.read().await;
        assert_eq!((collected.batches.len(), collected.lost), (3, 0));
        for batch in &collected.batches {
            let [(head, text, body)] = batch.records().collect::<Vec<_>>()[..] else { panic!("{batch:?}") };
            assert_eq!((head.length, text, body), (1, &b"h"[..], &b"b"[..]));
        }
        assert!(reader.read().await.batches.is_empty());
        reader.close().await;
        assert!(!recorder.is_on());
        write(&recorder);
        assert!(reader.read().await.batches.is_empty());
    }

    #[tokio::test]
    async fn no_record_is_read_before_an_earlier_one_of_another_ring() {
        let workers = Workers::start(2).unwrap();
        let [first, second] = &workers.runtimes()[..] else { panic!() };
        let recorder = Recorder::new();
        let mut reader = Reader::new(Arc::clone(&recorder), workers.runtimes());
        reader.open(30_000, 100, Detail::Bodies).await;
        let write = |body: &'static [u8]| {
            let (wire, way, kind) = (Wire::Client, Way::In, NoteKind::Message);
            let mark = recorder.begin().mark;
            move || note(mark, &Note { wire, way, kind, status: 0, head: b"", body })
        };
        let (call, answer) = (write(b"call"), write(b"answer"));
        // The second worker is at work while the first one's ring is read.
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (go_on, waits) = std::sync::mpsc::channel();
        second.spawn(async move {
            begun.send(()).unwrap();
            waits.recv().unwrap();
            answer();
        });
        begins.await.unwrap();
        let reading = tokio::spawn(async move { (reader.read().await, reader) });
        tokio::task::yield_now().await;
        first.spawn(async move { call() }).await.unwrap();
        go_on.send(()).unwrap();
        let (collected, mut reader) = reading.await.unwrap();
        let bodies = |collected: &CollectedRecords| -> Vec<Vec<u8>> {
            collected.batches.iter().flat_map(|batch| batch.records().map(|(.., body)| body.to_vec())).collect()
        };
        assert_eq!(bodies(&collected), [b""; 0], "the call was not read, so its answer is not");
        assert_eq!(bodies(&reader.read().await), [&b"call"[..], b"answer"]);
    }
}
