use super::*;
use std::sync::Mutex;

/// Notes the order in which layers see a frame.
struct Tracer {
    name: &'static str,
    directions: Vec<Direction>,
    /// Frames to let go at a timeout.
    kept: Vec<Frame>,
    keeps: bool,
}

impl Tracer {
    fn new(name: &'static str) -> Self {
        Self { name, directions: vec![Direction::Tx, Direction::Rx], kept: Vec::new(), keeps: false }
    }
}

impl Layer for Tracer {
    fn name(&self) -> &str {
        self.name
    }

    fn transforms(&self, direction: Direction) -> bool {
        self.directions.contains(&direction)
    }

    fn handle(&mut self, _now: Instant, mut frame: Frame, out: &mut dyn FnMut(Frame)) {
        frame.notes.push(self.name.to_owned());
        if self.keeps {
            self.kept.push(frame);
        } else {
            out(frame);
        }
    }

    fn handle_timeout(&mut self, _now: Instant, out: &mut dyn FnMut(Frame)) {
        self.kept.drain(..).for_each(out);
    }
}

/// Drops everything.
struct Wall;

impl Layer for Wall {
    fn name(&self) -> &str {
        "wall"
    }

    fn transforms(&self, _direction: Direction) -> bool {
        true
    }

    fn handle(&mut self, _now: Instant, mut frame: Frame, out: &mut dyn FnMut(Frame)) {
        frame.fate = Fate::Dropped { by: "wall".into() };
        out(frame);
    }
}

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
    let flow =
        Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 0xc000, dst_port: 4791 };
    Frame {
        direction,
        flow,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        ident: 0,
        bytes: vec![0; 16],
        fate: Fate::Pending,
        notes: vec![],
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), wall: Duration::from_secs(1) }
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

#[test]
fn layers_are_passed_in_order_and_back() {
    let mut stack = LinkStack::new();
    stack.push_layer(Tracer::new("inner"));
    stack.push_layer(Tracer { directions: vec![Direction::Rx], ..Tracer::new("one way") });
    stack.push_layer(Tracer::new("outer"));
    let mut notes = Vec::new();
    stack.egress(now(), frame(Direction::Tx), &mut |f| notes.push(f.notes));
    stack.ingress(now(), frame(Direction::Rx), &mut |f| notes.push(f.notes));
    assert_eq!(notes, [vec!["inner", "outer"], vec!["outer", "one way", "inner"]]);
}

#[test]
fn what_a_layer_lets_go_later_passes_the_layers_behind_it() {
    let mut stack = LinkStack::new();
    stack.push_layer(Tracer::new("inner"));
    stack.push_layer(Tracer { keeps: true, ..Tracer::new("keeper") });
    stack.push_layer(Tracer::new("outer"));
    stack.egress(now(), frame(Direction::Tx), &mut |_| panic!("kept"));
    stack.ingress(now(), frame(Direction::Rx), &mut |_| panic!("kept"));
    let mut notes = Vec::new();
    stack.handle_timeout(now(), &mut |f| notes.push(f.notes));
    assert_eq!(notes, [vec!["inner", "keeper", "outer"], vec!["outer", "keeper", "inner"]]);
}

#[test]
fn a_dropped_frame_reaches_observers_only() {
    let seen = Seen::default();
    let mut stack = LinkStack::new();
    stack.push_layer(Wall);
    stack.push_layer(Tracer::new("outer"));
    stack.push_observer(Witness(seen.clone()));
    stack.egress(now(), frame(Direction::Tx), &mut |_| panic!("dropped"));
    let dropped = Fate::Dropped { by: "wall".into() };
    assert_eq!(*seen.lock().unwrap(), [(Direction::Tx, dropped, vec![])], "no layer saw it after the wall");
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

#[test]
fn a_layer_is_found_by_its_type() {
    let mut stack = LinkStack::new();
    stack.push_layer(Wall);
    stack.push_layer(Tracer::new("this"));
    assert_eq!(stack.layer_mut::<Tracer>().map(|t| t.name), Some("this"));
    assert!(stack.layer_mut::<faults::FaultLayer>().is_none());
}
