use super::*;
use crate::wire::mad::Summary;
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        kind: Kind::Ask,
        transaction_id: 0x0102_0304_0506_0708,
        version: VERSION,
        slot: 0xa5,
        lanes: 4,
        features: Features::CNP | Features::CREDITS | Features::PAUSE,
        instance: 0x1112_1314_1516_1718,
        block: 0x2122,
        counting: Counting::TrainCharge,
        ports: SourcePorts::new(&[0xc001, 0xc002]).expect("two are not too many"),
        token: 0x3132_3334_3536_3738,
        proof: 0x4142_4344_4546_4748,
    }
}

fn emitted(hello: &Hello) -> [u8; MAD_LEN] {
    let mut out = [0xee; MAD_LEN];
    hello.emit(&mut out);
    out
}

/// The result of parsing a hello after setting this byte to another value.
fn with(at: usize, byte: u8) -> Result<Hello, HelloError> {
    let mut bytes = emitted(&hello());
    bytes[at] = byte;
    Hello::parse(&bytes)
}

#[test]
fn every_byte_has_its_place() {
    let mut expected = vec![1, 0x3f, 1, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 0, 0, 0, 0, 0];
    expected.extend([0; 13]);
    expected.extend([0x02, 0x72, 0x6e]);
    expected.extend([0, 2, 0xa5, 4, 0, 0, 0, 7, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    expected.extend([0x21, 0x22, 2, 2, 0xc0, 1, 0xc0, 2]);
    expected.resize(92, 0);
    expected.extend([0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38]);
    expected.extend([0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48]);
    expected.resize(MAD_LEN, 0);
    assert_eq!(emitted(&hello()).to_vec(), expected);
    assert_eq!(Hello::parse(&expected), Ok(hello()));
    let answer = Hello { kind: Kind::Answer, ..hello() };
    expected[3] = 0x81;
    assert_eq!(Hello::parse(&expected), Ok(answer));
    assert_eq!(emitted(&answer).to_vec(), expected);
}

#[test]
fn errors_name_the_rule() {
    assert_eq!(Hello::parse(&[0; 255]), Err(HelloError::Mad(MadError::Length { len: 255 })));
    assert_eq!(Hello::parse(&[0; 257]), Err(HelloError::Mad(MadError::Length { len: 257 })));
    assert_eq!(with(0, 2), Err(HelloError::Mad(MadError::BaseVersion(2))));
    assert_eq!(with(1, 0x07), Err(HelloError::Class(7)));
    assert_eq!(with(39, 0x6f), Err(HelloError::Oui([0x02, 0x72, 0x6f])));
    assert_eq!(with(2, 2), Err(HelloError::ClassVersion(2)));
    assert_eq!(with(3, 2), Err(HelloError::Method(2)));
    assert_eq!(with(17, 2), Err(HelloError::Attribute(2)));
    assert_eq!(with(26, 0x01), Err(HelloError::Segmented));
    assert_eq!(with(26, 0xfe), Ok(hello()), "the other flags mean nothing then");
    assert_eq!(with(41, 0), Err(HelloError::Version(0)));
    assert_eq!(with(41, 1), Err(HelloError::Version(1)));
    assert_eq!(with(59, 17), Err(HelloError::TooManyPorts(17)));
    for lanes in [0, 16, 255] {
        assert_eq!(with(43, lanes), Err(HelloError::Credits { lanes, block: 0x2122 }));
    }
    let without_block = Hello { block: 0, ..hello() };
    let error = HelloError::Credits { lanes: 4, block: 0 };
    assert_eq!(Hello::parse(&emitted(&without_block)), Err(error));
    // Without credits, their parameters are not checked.
    let without_credits = Hello { features: Features::CNP, lanes: 0, block: 0, ..hello() };
    assert_eq!(Hello::parse(&emitted(&without_credits)), Ok(without_credits));
}

/// Linux answers a Get of an unknown class by returning the question: method GetResp, status 0x000c (method and
/// attribute not supported). This must not be taken for a hello from a port with our features.
#[test]
fn a_question_that_linux_sends_back_is_no_answer() {
    let mut bytes = emitted(&hello());
    (bytes[3], bytes[5]) = (0x81, 0x0c);
    assert_eq!(Hello::parse(&bytes), Err(HelloError::Status(0x000c)));
    assert_eq!(
        Summary(&bytes).to_string(),
        "MAD class=0x3f method=0x81 attr=0x0001 tid=0x102030405060708 (refused with status 0x000c)"
    );
}

#[test]
fn a_later_version_is_read_as_far_as_this_one_goes() {
    let mut bytes = emitted(&hello());
    (bytes[40], bytes[44], bytes[58], bytes[108], bytes[255]) = (0x7f, 0x80, 9, 1, 2);
    let features = Features::from_bits_retain(0x8000_0007);
    let read = Hello { version: 0x7f02, features, counting: Counting::Other(9), ..hello() };
    assert_eq!(Hello::parse(&bytes), Ok(read));
    assert_eq!(
        Summary(&bytes).to_string(),
        "RNIC HELLO ask version=32514 slot=165 instance=0x1112131415161718 features=cnp+credits+pause+0x80000000 \
         lanes=4 block=8482 of=unknown(9) ports=49153,49154"
    );
}

#[test]
fn ports_are_sixteen_at_most() {
    let ports: Vec<u16> = (1..=17).collect();
    assert_eq!(SourcePorts::new(&ports), None);
    for len in 0..=MAX_PORTS {
        let some = SourcePorts::new(&ports[..len]).expect("not too many");
        assert_eq!(some.as_slice(), &ports[..len]);
        let hello = Hello { ports: some, ..hello() };
        assert_eq!(Hello::parse(&emitted(&hello)), Ok(hello));
    }
    // Ports beyond the count are not read.
    assert_eq!(with(64, 0xff), Ok(hello()));
}

#[test]
fn every_truncation_is_refused() {
    let bytes = emitted(&hello());
    for len in 0..MAD_LEN {
        assert_eq!(Hello::parse(&bytes[..len]), Err(HelloError::Mad(MadError::Length { len })));
    }
}

#[test]
fn every_change_of_a_byte_gives_a_hello_or_a_reason() {
    // Reserved: the attribute's neighbour and modifier, class-specific bits, segmentation, and everything after the
    // ports but the tokens.
    let ignored = |at: usize| matches!(at, 6..8 | 18..37 | 64..92 | 108..);
    let (mut hellos, mut refused) = (0, 0);
    for at in 0..MAD_LEN {
        let before = emitted(&hello())[at];
        for byte in (0..=u8::MAX).filter(|byte| *byte != before) {
            match with(at, byte) {
                Ok(read) => {
                    assert_eq!(read == hello(), ignored(at), "byte {at} is {byte:#x}");
                    assert_eq!(Hello::parse(&emitted(&read)), Ok(read));
                    assert!(!read.to_string().is_empty());
                    hellos += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    println!("{hellos} hellos, {refused} refused");
    assert!(hellos > 1000 && refused > 1000);
}

fn any_hello() -> impl Strategy<Value = Hello> {
    let ports = proptest::collection::vec(any::<u16>(), 0..=MAX_PORTS);
    let credits = (1..=MAX_LANES, 1..=u16::MAX);
    let who = (any::<bool>(), any::<[u64; 4]>(), VERSION..=u16::MAX, any::<u8>());
    (who, any::<u32>(), credits, any::<u8>(), ports).prop_map(|(who, features, credits, counting, ports)| {
        let (is_answer, [transaction_id, instance, token, proof], version, slot) = who;
        Hello {
            kind: if is_answer { Kind::Answer } else { Kind::Ask },
            transaction_id,
            version,
            slot,
            lanes: credits.0,
            features: Features::from_bits_retain(features),
            instance,
            block: credits.1,
            counting: Counting::from_u8(counting),
            ports: SourcePorts::new(&ports).expect("not too many"),
            token,
            proof,
        }
    })
}

proptest! {
    #[test]
    fn emitted_hellos_parse_back(hello in any_hello()) {
        let bytes = emitted(&hello);
        prop_assert_eq!(Hello::parse(&bytes), Ok(hello));
        prop_assert_eq!(Summary(&bytes).to_string(), hello.to_string());
    }

    #[test]
    fn any_bytes_give_a_hello_or_an_error(mut bytes: [[u8; 32]; 8], plausible: bool) {
        if plausible {
            let good = emitted(&hello());
            bytes.as_flattened_mut()[..42].copy_from_slice(&good[..42]);
        }
        match Hello::parse(bytes.as_flattened()) {
            Ok(read) => prop_assert_eq!(Hello::parse(&emitted(&read)), Ok(read)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
