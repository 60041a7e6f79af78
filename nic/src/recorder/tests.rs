use super::*;
use rnic_core::trace::{PortSample, Trace};
use std::sync::{Arc, Mutex};

/// A writer that accepts a limited number of bytes, which tests can inspect meanwhile.
#[derive(Clone)]
struct Bytes(Arc<Mutex<Vec<u8>>>, usize);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().expect("no writer panics");
        if all.len() + bytes.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_at_the_end() {
    let mut header = serde_json::to_vec(&header_now()).expect("JSON");
    header.push(b'\n');
    let full = Bytes(Arc::default(), header.len() + 10);
    let recorder = Recorder::new(full, &header_now()).expect("the header fits");
    let thread =
        RecorderThread::start(recorder, Duration::from_secs(3600), Sample::default).expect("a thread");
    assert_eq!(thread.stop().expect_err("no room").kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_thread_stamps_its_samples_and_takes_one_at_the_end() {
    let out = Bytes(Arc::default(), usize::MAX);
    let recorder = Recorder::new(out.clone(), &header_now()).expect("memory");
    let (told, tell) = channel();
    let mut taken = 0;
    let take = move || {
        // Each is different, so each is recorded.
        taken += 1;
        // Gone when the test does not wait any more.
        let _ = told.send(());
        Sample {
            at: Duration::from_secs(1 << 20),
            port: PortSample { tx_bytes: taken, ..Default::default() },
            ..Default::default()
        }
    };
    let thread = RecorderThread::start(recorder, Duration::ZERO, take).expect("a thread");
    for _ in 0..3 {
        tell.recv().expect("the thread takes samples");
    }
    let samples = thread.stop().expect("memory");
    let trace = Trace::read(&out.0.lock().expect("the thread has ended")[..])
        .expect("a trace, whose times do not go back");
    assert_eq!(trace.samples.len() as u64, samples);
    assert!(samples >= 4, "three and the last: {samples}");
    assert_eq!(trace.samples.last().map(|s| s.port.tx_bytes), Some(samples));
    assert!(trace.samples.iter().all(|s| s.at < Duration::from_secs(1 << 20)), "times are the thread's");
}
