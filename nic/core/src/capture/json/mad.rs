//! Management datagrams as JSON.

use qp::wire::mad::cm::Message;
use qp::wire::mad::hello::{Features, Hello, HelloError};
use qp::wire::mad::{Fields, Header, MAD_LEN, Mad, Value as Field};
use serde_json::{Map, Value, json};

/// The header and, of connection management, the message; or the hello of an rnic port. If it is none of these although
/// its class says so, "error" says why.
pub(super) fn fields(bytes: &[u8; MAD_LEN]) -> Value {
    let mad = match Mad::parse(bytes) {
        Ok(mad) => mad,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let mut fields = Map::from_iter([("header".to_owned(), group(&mad.header))]);
    if mad.header.class == Header::CLASS_CM {
        let (name, value) = match Message::of(&mad) {
            Ok(message) => {
                fields.insert("message".to_owned(), json!(message.attribute().name()));
                ("cm", group(&message))
            }
            Err(error) => ("error", json!(error.to_string())),
        };
        fields.insert(name.to_owned(), value);
    }
    match Hello::parse(bytes) {
        Ok(said) => fields.insert("hello".to_owned(), hello(&said)),
        // Somebody else's.
        Err(HelloError::Mad(_) | HelloError::Class(_) | HelloError::Oui(_)) => None,
        Err(error) => fields.insert("error".to_owned(), json!(error.to_string())),
    };
    fields.into()
}

/// What a port says of itself: version and block are numbers to count with, features have names.
fn hello(hello: &Hello) -> Value {
    let mut fields = group(hello);
    fields["version"] = json!(hello.version);
    fields["block"] = json!(hello.block);
    let names = [
        (Features::CNP, "cnp"),
        (Features::CREDITS, "credits"),
        (Features::PAUSE, "pause"),
        (Features::TELEMETRY, "telemetry"),
    ];
    let named = names.iter().filter(|(feature, _)| hello.features.contains(*feature)).map(|(_, name)| name);
    fields["feature_names"] = json!(named.collect::<Vec<_>>());
    fields
}

fn group(group: &dyn Fields) -> Value {
    let mut fields = Map::new();
    group.each(&mut |name, field| {
        fields.insert(name.to_owned(), value(field));
    });
    fields.into()
}

fn value(field: Field<'_>) -> Value {
    match field {
        Field::Number(number) => json!(number),
        Field::Hex { value, digits } => json!(format!("{value:#0width$x}", width = digits + 2)),
        Field::Flag(flag) => json!(flag),
        Field::Code { code, name, meaning: None } => json!({ "code": code, "name": name }),
        Field::Code { code, name, meaning } => json!({ "code": code, "name": name, "meaning": meaning }),
        Field::Mtu(mtu) => json!({ "code": mtu.code(), "bytes": mtu.mtu().map(|mtu| mtu.bytes()) }),
        // The longest time takes 43 bits.
        Field::Time(time) => {
            json!({ "code": time.code(), "ns": u64::try_from(time.duration().as_nanos()).unwrap_or(u64::MAX) })
        }
        Field::Service(id) => {
            let (space, port) = id.port().map(|(space, port)| (space.to_string(), port)).unzip();
            json!({ "id": format!("{:#018x}", id.0), "port_space": space, "port": port })
        }
        Field::Gid(gid) => json!(gid.to_string()),
        Field::Ip(ip) => json!(ip),
        Field::Bytes(bytes) => json!(hex(bytes)),
        Field::Numbers(numbers) => json!(numbers),
        Field::Group(fields) => group(fields),
    }
}

/// Bytes in hexadecimal, without the zeros at their end: those are padding more often than not.
fn hex(bytes: &[u8]) -> String {
    let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes[..len].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::wire::mad::cm::{Body, CmTimeout, Mra, MtuCode, Req, Rtu, ServiceId, SidrRep, SidrStatus};

    fn written(body: Body<'_>) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        Message { transaction_id: 5, attribute_modifier: 0, body }.emit(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn values_without_a_meaning_are_null() {
        let req = Req { path_mtu: MtuCode::new(9), service_id: ServiceId(7), ..Req::default() };
        let cm = &fields(&written(Body::Req(req)))["cm"];
        assert_eq!(cm["path_mtu"], json!({ "code": 9, "bytes": null }));
        assert_eq!(cm["service_id"], json!({ "id": "0x0000000000000007", "port_space": null, "port": null }));
        assert_eq!(cm.get("ip_cm"), None);
        let rep = SidrRep { status: SidrStatus::from_code(77), info: &[1, 0], ..SidrRep::default() };
        let cm = &fields(&written(Body::SidrRep(rep)))["cm"];
        assert_eq!((&cm["status"]["code"], &cm["status"]["name"]), (&json!(77), &json!(null)));
        assert_eq!(cm["info"], "01");
    }

    #[test]
    fn the_longest_time_is_exact() {
        let mra = Mra { service_timeout: CmTimeout::MAX, ..Mra::default() };
        let json = fields(&written(Body::Mra(mra)));
        assert_eq!(json["message"], "MRA");
        assert_eq!(json["cm"]["service_timeout"]["ns"], 8_796_093_022_208u64);
    }

    #[test]
    fn hellos_have_all_their_fields() {
        let mut said = Hello { version: 2, slot: 3, instance: 0xabc, transaction_id: 7, ..Hello::default() };
        (said.features, said.lanes, said.block) = (Features::CREDITS | Features::PAUSE, 4, 64);
        said.ports = qp::wire::mad::hello::SourcePorts::new(&[49_152, 49_153]).unwrap();
        (said.token, said.proof) = (0x51, 0x61);
        let mut bytes = [0; MAD_LEN];
        said.emit(&mut bytes);
        let expected = json!({
            "kind": { "code": 1, "name": "ask" },
            "transaction_id": "0x0000000000000007",
            "version": 2,
            "slot": 3,
            "lanes": 4,
            "features": "0x00000006",
            "feature_names": ["credits", "pause"],
            "instance": "0x0000000000000abc",
            "block": 64,
            "counting": { "code": 0, "name": "packet-bytes" },
            "ports": [49_152, 49_153],
            "token": "0x0000000000000051",
            "proof": "0x0000000000000061",
        });
        assert_eq!(fields(&bytes)["hello"], expected);
        bytes[5] = 0x0c;
        let json = fields(&bytes);
        assert_eq!((json.get("hello"), &json["error"]), (None, &json!("refused with status 0x000c")));
        bytes[39] ^= 1;
        assert_eq!(fields(&bytes).get("error"), None, "another vendor's");
    }

    #[test]
    fn what_is_no_connection_management_shows_its_header() {
        let mut bytes = written(Body::Rtu(Rtu::default()));
        bytes[17] = 0x44;
        let json = fields(&bytes);
        assert_eq!(json["error"], "unknown connection management attribute 0x0044");
        assert_eq!(json["header"]["attribute_id"], "0x0044");
        bytes[1] = 4;
        let json = fields(&bytes);
        assert_eq!((&json["header"]["class"], json.get("error"), json.get("cm")), (&json!(4), None, None));
        bytes[0] = 9;
        assert_eq!(fields(&bytes), json!({ "error": "management header version 9, only 1 exists" }));
    }
}
