//! `rnic show`: the devices of this host, in the manner of iproute2's `rdma`.
//!
//! A device exists in the program that opens it. This command opens each possible device for a moment and shows its
//! properties.

mod counters;
mod qp;

use crate::programs::{Filter, Places, Seen};
use clap::ValueEnum;
use rnic::doctor::{Owner, PortHolder, port_holders};
use rnic::engine::MAX_EVENTS;
use rnic::net::{Interface, ROCE_PORT, interfaces};
use rnic::process::{HostAddress, NamedDevice, ProcessConfig, Settings, Variable};
use rnic::{AsyncEvent, Counters, Device, DeviceAttr, DeviceConfig, Gid, Mtu};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

/// List the devices that this host can have: one for each IP address.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A device exists in the program that opens it. This command shows the devices that a program could \
                        open now, under the names that `rnic run` with the same options would give them. `port_state \
                        busy` means that another program uses the address. Other addresses of this host are listed by \
                        themselves: choose one with `rnic run --addr`."
)]
pub(crate) struct Args {
    /// What to show.
    #[arg(value_enum, default_value_t = Object::Link)]
    object: Object,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
    /// Indent the JSON.
    #[arg(short, long)]
    pretty: bool,
    #[command(flatten)]
    devices: Devices,
    /// Include counters that are zero (always included in JSON).
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    choice: counters::Choice,
    /// Show it again and again, every second or every SECONDS, until Ctrl-C.
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = crate::number::period)]
    watch: Option<Duration>,
}

/// The options of `rnic run` that decide which devices there are, and what they are called.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Devices, as with `rnic run`")]
struct Devices {
    /// Show the devices that these addresses make.
    #[arg(long, value_name = "ADDRESS,...")]
    addr: Option<OsString>,
    /// Show this many.
    #[arg(long, value_name = "NUMBER")]
    devices: Option<OsString>,
    /// Call them this way.
    #[arg(long, value_name = "NAME,...")]
    device_name: Option<OsString>,
}

impl Devices {
    fn process(&self) -> Result<ProcessConfig, Box<dyn Error>> {
        let mut settings = Settings::from_env()?;
        let given = [
            ("--addr", Variable::Addr, &self.addr),
            ("--devices", Variable::Devices, &self.devices),
            ("--device-name", Variable::DeviceName, &self.device_name),
        ];
        for (option, variable, value) in given {
            let Some(value) = value else { continue };
            settings.set(variable, value).map_err(|error| format!("{option}: {}", error.fault))?;
        }
        Ok(settings.process()?)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Object {
    /// Devices.
    Dev,
    /// Their ports.
    Link,
    /// GID tables.
    Gid,
    /// P_Key tables.
    Pkey,
    /// The limits and capabilities of devices.
    Attr,
    /// The counters of running programs, and of those that ended within the last hour.
    Counters,
    /// The names of all counters, with their meanings.
    CounterNames,
    /// The queue pairs of running programs: type, state, peer, PSNs, what is outstanding, and why they failed.
    Qp,
    /// The numbers that completions in error carry as `vendor_err`, with what they mean.
    VendorErrors,
}

/// A device or another object: its head as text, its keys in JSON, and its properties in order.
struct Row {
    head: String,
    keys: Vec<(&'static str, Value)>,
    pairs: Vec<(&'static str, Value)>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let Some(period) = args.watch else {
        return print(&text(args)?);
    };
    loop {
        let mut text = text(args)?;
        if io::stdout().is_terminal() {
            // Home, and what was there is cleared.
            text.splice(0..0, *b"\x1b[H\x1b[2J");
        } else if !args.json {
            text.push(b'\n');
        }
        print(&text)?;
        std::thread::sleep(period);
    }
}

/// Prints; a reader that closed the pipe has seen enough.
fn print(text: &[u8]) -> Result<ExitCode, Box<dyn Error>> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// The programs of the run folder and the daemon.
fn look() -> Result<Vec<Seen>, Box<dyn Error>> {
    Places::find().look(|error| eprintln!("programs at the daemon are not shown: {error}"))
}

/// What is shown.
fn text(args: &Args) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut text = Vec::new();
    let rows = match args.object {
        Object::Counters => {
            let seen = counters::read(&args.filter, &args.choice)?;
            if !args.json {
                counters::write(&seen, &args.choice, args.all, &mut text)?;
            }
            seen.iter().map(|one| counters::row(one, &args.choice)).collect()
        }
        Object::CounterNames => counter_names(),
        Object::Qp => qp::rows(&args.filter)?,
        Object::VendorErrors => qp::vendor_errors(),
        object => devices(object, &args.devices.process()?)?,
    };
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        let print = if args.pretty { serde_json::to_writer_pretty } else { serde_json::to_writer };
        print(&mut text, &rows)?;
        text.push(b'\n');
    } else if args.object != Object::Counters {
        for row in &rows {
            let lines = if args.object == Object::Attr { row.block() } else { row.line() };
            writeln!(text, "{lines}")?;
        }
    }
    Ok(text)
}

impl Row {
    fn line(&self) -> String {
        let pairs = self.pairs.iter().map(|(key, value)| format!(" {key} {}", plain(value)));
        format!("{}{}", self.head, pairs.collect::<String>())
    }

    /// The head and a line for each property, with long lists continued on further lines.
    fn block(&self) -> String {
        /// Columns of a property's name, and of the text that follows.
        const NAME: usize = 26;
        const TEXT: usize = 80 - 4 - NAME - 1;
        let mut block = self.head.clone();
        for (key, value) in &self.pairs {
            let text = plain(value);
            let (mut name, mut line) = (*key, String::new());
            for item in text.split_inclusive(',') {
                if !line.is_empty() && line.len() + item.len() > TEXT {
                    block.push_str(&format!("\n    {name:<NAME$} {line}"));
                    name = "";
                    line.clear();
                }
                line.push_str(item);
            }
            block.push_str(&format!("\n    {name:<NAME$} {line}"));
        }
        block
    }

    fn json(&self) -> Value {
        self.keys
            .iter()
            .chain(&self.pairs)
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect::<Map<_, _>>()
            .into()
    }
}

/// A value without the quotes of JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// An address that a device can have.
struct Candidate {
    /// The device's name under `rnic run`; `None` if no device would use the address.
    name: Option<String>,
    address: IpAddr,
    netdev: String,
    up: bool,
    mtu: u32,
    /// The device, or why it cannot be opened now.
    device: Result<Device, String>,
    holder: Option<PortHolder>,
}

impl Candidate {
    fn new(address: IpAddr, interface: &Interface, holders: &[PortHolder]) -> Self {
        let scope_id = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                // The interface may just have disappeared.
                nix::net::if_::if_nametoindex(interface.name.as_str()).unwrap_or(0)
            }
            _ => 0,
        };
        let at = HostAddress { ip: address, scope_id };
        let config = DeviceConfig { address: Some(at), ..DeviceConfig::default() };
        Self {
            name: None,
            address,
            netdev: interface.name.clone(),
            up: interface.up,
            mtu: interface.mtu,
            device: config.open().map_err(|error| error.to_string()),
            holder: holders.iter().find(|holder| holder.blocks(address)).cloned(),
        }
    }

    /// `free`, `busy` if another program uses the address, or `unusable`.
    fn port_state(&self) -> &'static str {
        match (&self.device, &self.holder) {
            (Ok(_), _) => "free",
            (Err(_), Some(_)) => "busy",
            (Err(_), None) => "unusable",
        }
    }

    /// Whether packets can flow, for this program or the one that uses the address.
    fn active(&self) -> bool {
        match &self.device {
            Ok(device) => device.port_attr().active,
            Err(_) => self.up && self.port_state() != "unusable",
        }
    }

    fn path_mtu(&self) -> u32 {
        let carried = || Mtu::for_interface(self.mtu).unwrap_or(Mtu::B1024);
        self.device.as_ref().map_or_else(|_| carried(), |device| device.port_attr().active_mtu).bytes()
    }
}

/// The addresses of this host, loopback first. Of 127.0.0.0/8, those in use and the first free ones.
fn candidates(process: &ProcessConfig) -> Result<Vec<Candidate>, Box<dyn Error>> {
    // Free addresses can be listed even if the holders of others are unknown.
    let holders = port_holders().unwrap_or_default();
    let mut all = interfaces().map_err(|error| format!("cannot list the network interfaces: {error}"))?;
    all.sort_by_key(|interface| !interface.loopback);
    let mut found = Vec::new();
    for interface in &all {
        let mut addresses: BTreeSet<IpAddr> = interface.addresses.iter().copied().collect();
        if interface.loopback {
            let held = holders.iter().map(|h| h.address.ip().to_canonical());
            addresses.extend(held.filter(|ip| ip.is_ipv4() && ip.is_loopback()));
            let asked = process.devices.iter().flat_map(|device| &device.addresses).map(|address| address.ip);
            addresses.extend(asked.filter(|ip| ip.is_ipv4() && ip.is_loopback()));
            // Find a free address for each device. All are open at once, so that each gets a different one.
            let open: Vec<_> = process.devices.iter().map_while(|_| rnic::open().ok()).collect();
            addresses.extend(open.iter().map(Device::address));
        }
        found.extend(addresses.into_iter().map(|address| Candidate::new(address, interface, &holders)));
    }
    Ok(found)
}

/// The devices of a process that starts now, in order. What its settings leave open is decided as the process would
/// decide: a device takes the first free one of its addresses, or of the loopback addresses.
fn settled(process: &ProcessConfig, mut all: Vec<Candidate>) -> Result<Vec<Candidate>, String> {
    // With one device and no configured address, the other addresses are worth listing.
    let chosen =
        process.devices.len() > 1 || process.devices.iter().any(|device| !device.addresses.is_empty());
    let mut named: Vec<Candidate> = Vec::new();
    for device in &process.devices {
        let at = place(device, &all).ok_or_else(|| format!("{} has no address of this host", device.name))?;
        named.push(Candidate { name: Some(device.name.clone()), ..all.remove(at) });
    }
    if !chosen {
        named.append(&mut all);
    }
    Ok(named)
}

/// The index of the address that a device would take.
fn place(device: &NamedDevice, all: &[Candidate]) -> Option<usize> {
    let own: Vec<IpAddr> = device.addresses.iter().map(|address| address.ip).collect();
    let is_own = |candidate: &Candidate| {
        let loopback = candidate.address.is_ipv4() && candidate.address.is_loopback();
        if own.is_empty() { loopback } else { own.contains(&candidate.address) }
    };
    let free = all.iter().position(|candidate| is_own(candidate) && candidate.device.is_ok());
    free.or_else(|| all.iter().position(is_own))
}

fn devices(object: Object, process: &ProcessConfig) -> Result<Vec<Row>, Box<dyn Error>> {
    let all = settled(process, candidates(process)?)?;
    Ok(all.iter().enumerate().filter_map(|(index, candidate)| row(object, index, candidate)).collect())
}

/// The row of a device; `None` for attributes and P_Keys of a device that cannot be opened.
fn row(object: Object, index: usize, candidate: &Candidate) -> Option<Row> {
    let name = candidate.name.clone().unwrap_or_else(|| candidate.address.to_string());
    let gid = Gid::from(candidate.address);
    let mut pairs = Vec::new();
    let head = match object {
        Object::Dev => {
            pairs.push(("node_type", json!("ca")));
            pairs.push(("transport", json!("rocev2")));
            pairs.push(("ports", json!(1)));
            format!("{index}: {name}:")
        }
        Object::Link => {
            pairs.push(("state", json!(if candidate.active() { "ACTIVE" } else { "DOWN" })));
            pairs.push(("physical_state", json!(if candidate.up { "LINK_UP" } else { "DISABLED" })));
            format!("link {name}/1")
        }
        Object::Gid => {
            pairs.push(("index", json!(0)));
            pairs.push(("gid", json!(gid.to_string())));
            pairs.push(("type", json!("rocev2")));
            format!("gid {name}/1")
        }
        Object::Pkey => {
            // The default table; programs can configure another.
            let keys = candidate.device.as_ref().ok()?.pkeys();
            let keys: Vec<_> = keys.iter().map(|key| format!("{:#06x}", key.0)).collect();
            pairs.push(("pkeys", json!(keys.join(","))));
            format!("pkey {name}/1")
        }
        Object::Attr => {
            pairs.extend(attributes(candidate.device.as_ref().ok()?));
            format!("attr {name}")
        }
        Object::Counters | Object::CounterNames | Object::Qp | Object::VendorErrors => return None,
    };
    if object != Object::Attr {
        pairs.push(("netdev", json!(candidate.netdev)));
        pairs.push(("address", json!(candidate.address.to_string())));
    }
    if matches!(object, Object::Dev | Object::Link) {
        pairs.extend(port(candidate));
    }
    let mut keys = vec![("ifindex", json!(index)), ("ifname", json!(candidate.name))];
    if matches!(object, Object::Link | Object::Gid | Object::Pkey) {
        keys.push(("port", json!(1)));
    }
    Some(Row { head, keys, pairs })
}

/// The state of the UDP port at an address.
fn port(candidate: &Candidate) -> Vec<(&'static str, Value)> {
    let mut pairs = vec![
        ("active_mtu", json!(candidate.path_mtu())),
        ("udp_port", json!(ROCE_PORT)),
        ("port_state", json!(candidate.port_state())),
    ];
    match (&candidate.device, &candidate.holder) {
        (Err(_), Some(holder)) => match &holder.owner {
            Owner::Process { pid, name } => {
                pairs.push(("pid", json!(pid)));
                pairs.push(("comm", json!(name)));
            }
            Owner::Kernel => pairs.push(("comm", json!("[kernel]"))),
            Owner::Hidden => pairs.push(("uid", json!(holder.uid))),
        },
        (Err(error), None) => pairs.push(("error", json!(error))),
        (Ok(_), _) => {}
    }
    pairs
}

/// The attributes of a device, by the names of the verbs.
fn attributes(device: &Device) -> Vec<(&'static str, Value)> {
    let DeviceAttr {
        max_qp,
        max_qp_wr,
        max_sge,
        max_inline_data,
        max_cq,
        max_cqe,
        max_mr,
        max_mw,
        max_mr_size,
        max_pd,
        max_srq,
        max_srq_wr,
        max_srq_sge,
        max_ah,
        max_mcast_grp,
        max_mcast_qp_attach,
        max_total_mcast_qp_attach,
        max_qp_rd_atom,
        max_qp_init_rd_atom,
        max_pkeys,
        phys_port_cnt,
    } = device.attr();
    let port = device.port_attr();
    vec![
        ("max_qp", json!(max_qp)),
        ("max_qp_wr", json!(max_qp_wr)),
        ("max_sge", json!(max_sge)),
        ("max_inline_data", json!(max_inline_data)),
        ("max_cq", json!(max_cq)),
        ("max_cqe", json!(max_cqe)),
        ("max_mr", json!(max_mr)),
        ("max_mw", json!(max_mw)),
        ("max_mr_size", json!(max_mr_size)),
        ("max_pd", json!(max_pd)),
        ("max_srq", json!(max_srq)),
        ("max_srq_wr", json!(max_srq_wr)),
        ("max_srq_sge", json!(max_srq_sge)),
        ("max_ah", json!(max_ah)),
        ("max_mcast_grp", json!(max_mcast_grp)),
        ("max_mcast_qp_attach", json!(max_mcast_qp_attach)),
        ("max_total_mcast_qp_attach", json!(max_total_mcast_qp_attach)),
        ("max_qp_rd_atom", json!(max_qp_rd_atom)),
        ("max_qp_init_rd_atom", json!(max_qp_init_rd_atom)),
        ("max_pkeys", json!(max_pkeys)),
        ("phys_port_cnt", json!(phys_port_cnt)),
        ("max_mtu", json!(port.max_mtu.bytes())),
        ("active_mtu", json!(port.active_mtu.bytes())),
        ("gid_tbl_len", json!(port.gid_tbl_len)),
        ("pkey_tbl_len", json!(port.pkey_tbl_len)),
        ("max_msg_sz", json!(port.max_msg_sz)),
        ("max_async_events", json!(MAX_EVENTS)),
        ("async_events", json!(AsyncEvent::NAMES.join(","))),
    ]
}

/// The names of all counters, with their meanings.
fn counter_names() -> Vec<Row> {
    let row = |(name, meaning): (&str, &str)| Row {
        head: format!("counter {name:<26} {meaning}"),
        keys: vec![("name", json!(name)), ("meaning", json!(meaning))],
        pairs: Vec::new(),
    };
    Counters::describe().map(row).collect()
}
