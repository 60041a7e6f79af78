use super::*;
use std::sync::Mutex;

type Seen = Arc<Mutex<Vec<(Direction, Fate, Vec<String>)>>>;

struct Witness(Seen);

impl Observer for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn observe(&mut self, _now: Now, frame: &FrameRef<'_>) {
        self.0.lock().unwrap().push((frame.direction, frame.fate.clone(), frame.notes.to_vec()));
    }
}

fn frame(direction: Direction) -> Frame {
    let ip = IpHeader { src: [10, 0, 0, 1].into(), ..IpHeader::to([10, 0, 0, 2].into()) };
    Frame::new(direction, ip, vec![0; 16])
}

fn now() -> Now {
    Now { instant: Instant::EPOCH, wall: Duration::from_secs(1) }
}

#[test]
fn an_empty_stack_passes_frames_on() {
    let mut stack = LinkStack::new();
    assert!(stack.is_empty() && !stack.observes() && !stack.transforms(Direction::Tx));
    let mut out = Vec::new();
    stack.egress(now(), frame(Direction::Tx), &mut |f| out.push(f));
    assert_eq!(out, [Frame { fate: Fate::Delivered, ..frame(Direction::Tx) }]);
    assert_eq!(stack.poll_timeout(), None);
}

/// A link with these fault rules, and a cable on which packets are a millisecond long.
fn stack(start: Instant, rules: &[&str]) -> LinkStack {
    let config: LinkConfig = "delay=1ms".parse().unwrap();
    let profile = config.at(&"off".parse().unwrap(), qp::Mtu::B4096).unwrap();
    let mut stack = LinkStack::new();
    stack.emulation = Emulation::new(&profile, start, 1);
    let mut faults = FaultLayer::new(1);
    for rule in rules {
        faults.add(start, rule.parse().unwrap()).unwrap();
    }
    stack.faults = Some(faults);
    stack
}

/// What comes out of a link for a frame, and when.
fn pass(stack: &mut LinkStack, start: Instant, frame: Frame) -> Vec<(Duration, Vec<String>)> {
    let at = |after: Duration| Now { instant: start + after, wall: after };
    let mut out = Vec::new();
    let mut after = Duration::ZERO;
    match frame.direction {
        Direction::Tx => stack.egress(at(after), frame, &mut |f| out.push((after, f.notes))),
        Direction::Rx => stack.ingress(at(after), None, frame, &mut |f| out.push((after, f.notes))),
    }
    while let Some(due) = stack.poll_timeout() {
        after = due - start;
        stack.handle_timeout(at(after), &mut |f| out.push((after, f.notes)));
    }
    out
}

#[test]
fn arriving_packets_pass_the_wire_before_the_cable_and_leaving_ones_the_wire_only() {
    let (start, ms) = (Instant::EPOCH, Duration::from_millis(1));
    let mut stack = stack(start, &["one: dup", "two: rx delay 2ms"]);
    assert!(stack.transforms(Direction::Tx) && stack.transforms(Direction::Rx));
    let out = pass(&mut stack, start, frame(Direction::Tx));
    assert_eq!(out.iter().map(|(after, _)| *after).collect::<Vec<_>>(), [Duration::ZERO; 2]);
    let out = pass(&mut stack, start, frame(Direction::Rx));
    assert_eq!(out.iter().map(|(after, _)| *after).collect::<Vec<_>>(), [3 * ms; 2], "delayed, then carried");
}

#[test]
fn a_dropped_frame_reaches_observers_only() {
    let (seen, start) = (Seen::default(), Instant::EPOCH);
    let mut stack = stack(start, &["wall: drop"]);
    stack.push_observer(Witness(seen.clone()));
    for direction in [Direction::Tx, Direction::Rx] {
        assert_eq!(pass(&mut stack, start, frame(direction)), []);
    }
    let seen = seen.lock().unwrap();
    assert_eq!(
        seen.iter().map(|(direction, ..)| *direction).collect::<Vec<_>>(),
        [Direction::Tx, Direction::Rx]
    );
    assert!(seen.iter().all(|(_, fate, _)| *fate == Fate::Dropped { by: "wall".into() }));
}

#[test]
fn observers_see_packets_in_place_and_can_be_removed() {
    let seen = Seen::default();
    let mut stack = LinkStack::new();
    stack.push_observer(Witness(seen.clone()));
    assert!(stack.observes() && !stack.is_empty() && !stack.transforms(Direction::Rx));
    let passing = Frame { fate: Fate::Delivered, ..frame(Direction::Rx) };
    stack.observe(now(), &passing.view());
    assert_eq!(*seen.lock().unwrap(), [(Direction::Rx, Fate::Delivered, vec![])]);
    assert_eq!([stack.remove_observers("witness"), stack.remove_observers("witness")], [1, 0]);
    assert!(stack.is_empty());
}
