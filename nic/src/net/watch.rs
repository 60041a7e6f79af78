//! Watches whether an address of this host is usable: it exists, and its link is up.

use super::route::{News, Read, RouteSocket};
use qp::Mtu;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// The maximum number of datagrams read by one call of `look`. Remaining ones keep the descriptor readable.
const DATAGRAMS_PER_LOOK: usize = 64;

/// The maximum number of datagrams in one answer: 1,000 interfaces with 10 addresses each take some 300.
const DATAGRAMS_PER_ANSWER: usize = 4096;

/// The state of an address on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostState {
    /// Whether the address exists.
    pub address: bool,
    /// Whether its link, or the last link that it was on, is up.
    pub link: bool,
    /// The IP MTU of that link; `None` if unknown.
    pub mtu: Option<u32>,
    /// The number of that interface.
    pub interface: Option<u32>,
}

impl HostState {
    /// The largest path MTU that the link carries.
    #[must_use]
    pub fn path_mtu(&self) -> Option<Mtu> {
        // A link that cannot carry even the smallest MTU gets packets that it refuses.
        self.mtu.map(|mtu| Mtu::for_interface(mtu).unwrap_or(Mtu::B256))
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    up: bool,
    loopback: bool,
    mtu: Option<u32>,
}

/// Everything that concerns one address.
#[derive(Debug)]
struct View {
    address: IpAddr,
    /// The only interface that counts, for IPv6 link-local addresses; 0 for any.
    scope_id: u32,
    links: BTreeMap<u32, Link>,
    /// Interfaces that have the address, once for each prefix length.
    holders: BTreeSet<(u32, u8)>,
    /// The address was seen on an interface. Other addresses, of 127.0.0.0/8 or routed to this host, are taken for
    /// granted.
    seen: bool,
    last_holder: Option<u32>,
}

impl View {
    fn new(address: IpAddr, scope_id: u32) -> Self {
        Self {
            address,
            scope_id,
            links: BTreeMap::new(),
            holders: BTreeSet::new(),
            seen: false,
            last_holder: None,
        }
    }

    /// Resets the state before a full answer of the kernel.
    fn forget(&mut self) {
        self.links.clear();
        self.holders.clear();
    }

    /// 127.0.0.0/8 consists of addresses of the loopback interface, most of which it does not list.
    fn is_loopback_net(&self) -> bool {
        self.address.is_ipv4() && self.address.is_loopback()
    }

    fn take_in(&mut self, news: News) {
        let ours = |ip: IpAddr, index: u32| ip == self.address && [0, index].contains(&self.scope_id);
        match news {
            News::Link { index, up, loopback, mtu } => {
                self.links.insert(index, Link { up, loopback, mtu });
            }
            News::LinkGone { index } => {
                self.links.remove(&index);
                self.holders.retain(|(holder, _)| *holder != index);
            }
            News::Address { index, prefix, ip, usable } if ours(ip, index) => {
                if usable {
                    self.holders.insert((index, prefix));
                    self.seen = true;
                    self.last_holder = Some(index);
                } else {
                    self.holders.remove(&(index, prefix));
                }
            }
            News::AddressGone { index, prefix, ip } if ours(ip, index) => {
                self.holders.remove(&(index, prefix));
            }
            News::Address { .. } | News::AddressGone { .. } | News::Done => {}
        }
    }

    fn state(&self) -> HostState {
        let state = |index: Option<u32>, address| {
            let link = index.and_then(|index| self.links.get(&index));
            HostState {
                address,
                link: link.is_some_and(|link| link.up),
                mtu: link.and_then(|link| link.mtu),
                interface: index,
            }
        };
        if self.is_loopback_net() {
            let lo = self.links.iter().find(|(_, link)| link.loopback).map(|(index, _)| *index);
            return state(lo, true);
        }
        if !self.seen {
            return HostState { address: true, link: true, mtu: None, interface: None };
        }
        let is_up = |index: &u32| self.links.get(index).is_some_and(|link| link.up);
        let mut holders = self.holders.iter().map(|(index, _)| *index);
        let holder = holders.clone().find(is_up).or_else(|| holders.next());
        state(holder.or(self.last_holder), holder.is_some())
    }
}

/// Watches an address of this host: its descriptor is readable when something may have changed.
#[derive(Debug)]
pub struct HostWatch {
    socket: RouteSocket,
    view: View,
    state: HostState,
    /// Notifications were lost, and the kernel has not been queried again yet.
    stale: bool,
}

impl HostWatch {
    /// Starts to watch `address` in the network namespace of this thread.
    ///
    /// # Errors
    /// The process has no descriptors left, or a sandbox forbids the socket.
    pub fn new(address: IpAddr, scope_id: u32) -> io::Result<Self> {
        let view = View::new(address.to_canonical(), scope_id);
        let mut watch = Self { socket: RouteSocket::new()?, state: view.state(), view, stale: true };
        watch.ask_all()?;
        watch.state = watch.view.state();
        watch.stale = false;
        Ok(watch)
    }

    /// The state after the last call of `look`.
    #[must_use]
    pub fn state(&self) -> HostState {
        self.state
    }

    /// Processes changes. Reports every intermediate state too, so that an address that disappeared and returned is
    /// reported as gone. Never waits.
    ///
    /// # Errors
    /// The socket is unusable.
    pub fn look(&mut self, mut changed: impl FnMut(HostState)) -> io::Result<()> {
        for _ in 0..DATAGRAMS_PER_LOOK {
            match self.socket.read()? {
                Read::Nothing => break,
                Read::Lost => self.stale = true,
                Read::Datagram(len) => {
                    // Collected, because the notifications borrow the buffer. They are few.
                    let news: Vec<_> = self.socket.news(len).collect();
                    for news in news {
                        self.view.take_in(news);
                        self.tell(&mut changed);
                    }
                }
            }
        }
        if self.stale {
            // If that fails, the next call tries again; until then the state is unchanged.
            self.stale = self.ask_all().is_err();
            self.tell(&mut changed);
        }
        Ok(())
    }

    fn tell(&mut self, changed: &mut impl FnMut(HostState)) {
        let state = self.view.state();
        if !self.stale && state != self.state {
            self.state = state;
            changed(state);
        }
    }

    /// Queries the kernel for everything.
    fn ask_all(&mut self) -> io::Result<()> {
        self.view.forget();
        for what in [libc::RTM_GETLINK, libc::RTM_GETADDR] {
            self.socket.ask(what)?;
            self.take_answer()?;
        }
        Ok(())
    }

    fn take_answer(&mut self) -> io::Result<()> {
        for _ in 0..DATAGRAMS_PER_ANSWER {
            match self.socket.read()? {
                Read::Datagram(len) => {
                    let mut done = false;
                    for news in self.socket.news(len) {
                        done |= news == News::Done;
                        self.view.take_in(news);
                    }
                    if done {
                        return Ok(());
                    }
                }
                // Notifications were lost, but the answer still follows.
                Read::Lost => {}
                // The kernel answers within the call that makes the request.
                Read::Nothing => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for HostWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH: u32 = 2;
    const OTHER: u32 = 3;

    fn link(index: u32, up: bool, mtu: u32) -> News {
        News::Link { index, up, loopback: index == 1, mtu: Some(mtu) }
    }

    fn ip() -> IpAddr {
        IpAddr::from([10, 0, 0, 1])
    }

    fn here(index: u32) -> News {
        News::Address { index, prefix: 24, ip: ip(), usable: true }
    }

    fn gone(index: u32) -> News {
        News::AddressGone { index, prefix: 24, ip: ip() }
    }

    /// The state of `address` after this news: the address, its link, its MTU.
    fn after(address: IpAddr, scope_id: u32, news: &[News]) -> (bool, bool, Option<u32>) {
        let mut view = View::new(address, scope_id);
        news.iter().for_each(|news| view.take_in(*news));
        let state = view.state();
        (state.address, state.link, state.mtu)
    }

    #[test]
    fn an_address_works_while_it_is_there_and_its_link_is_up() {
        let begin = [link(ETH, true, 1500), here(ETH)];
        let after = |more: &[News]| after(ip(), 0, &[&begin, more].concat());
        assert_eq!(after(&[]), (true, true, Some(1500)));
        assert_eq!(after(&[gone(ETH)]), (false, true, Some(1500)));
        assert_eq!(after(&[gone(ETH), here(ETH)]), (true, true, Some(1500)));
        assert_eq!(after(&[link(ETH, false, 1500)]), (true, false, Some(1500)));
        assert_eq!(after(&[link(ETH, true, 9000)]), (true, true, Some(9000)));
        assert_eq!(after(&[News::LinkGone { index: ETH }]), (false, false, None));
        let other = News::AddressGone { index: ETH, prefix: 24, ip: IpAddr::from([10, 0, 0, 2]) };
        assert_eq!(after(&[other]), (true, true, Some(1500)), "somebody else's address");
    }

    #[test]
    fn an_address_may_move_and_may_be_there_twice() {
        let moved = [link(ETH, true, 1500), link(OTHER, true, 9000), here(ETH), gone(ETH), here(OTHER)];
        assert_eq!(after(ip(), 0, &moved), (true, true, Some(9000)));
        let twice = [link(ETH, false, 1500), link(OTHER, true, 9000), here(ETH), here(OTHER)];
        assert_eq!(after(ip(), 0, &twice), (true, true, Some(9000)), "one link that is up will do");
        let narrow = News::Address { index: ETH, prefix: 32, ip: ip(), usable: true };
        let prefixes = [link(ETH, true, 1500), here(ETH), narrow, gone(ETH)];
        assert_eq!(after(ip(), 0, &prefixes), (true, true, Some(1500)), "with the other prefix it stays");
    }

    #[test]
    fn link_local_addresses_count_on_their_interface_only() {
        let ip: IpAddr = "fe80::1".parse().expect("an address");
        let here = |index| News::Address { index, prefix: 64, ip, usable: true };
        let gone = |index| News::AddressGone { index, prefix: 64, ip };
        let news = [link(ETH, true, 1500), link(OTHER, true, 9000), here(ETH), here(OTHER)];
        assert_eq!(after(ip, OTHER, &[&news[..], &[gone(ETH)]].concat()), (true, true, Some(9000)));
        assert_eq!(after(ip, OTHER, &[&news[..], &[gone(OTHER)]].concat()), (false, true, Some(9000)));
        let tentative = News::Address { index: OTHER, prefix: 64, ip, usable: false };
        assert!(!after(ip, OTHER, &[&news[..], &[tentative]].concat()).0, "detection began anew");
    }

    #[test]
    fn of_the_loopback_network_only_the_link_counts() {
        let ip = IpAddr::from([127, 5, 6, 7]);
        assert_eq!(after(ip, 0, &[link(1, true, 65536), link(ETH, false, 9)]), (true, true, Some(65536)));
        assert_eq!(after(ip, 0, &[link(1, false, 65536), link(ETH, true, 9)]), (true, false, Some(65536)));
    }

    #[test]
    fn an_address_that_no_interface_lists_is_taken_for_granted() {
        assert_eq!(after(ip(), 0, &[link(ETH, false, 1500)]), (true, true, None));
        assert!(!after(ip(), 0, &[link(ETH, true, 1500), here(ETH), gone(ETH)]).0, "until one does");
    }

    #[test]
    fn this_host_answers() {
        let mut watch = HostWatch::new(IpAddr::from([127, 0, 0, 1]), 0).expect("a netlink socket");
        let state = watch.state();
        assert!(state.address && state.link && state.mtu.is_some(), "{state:?}");
        assert_eq!(state.interface, nix::net::if_::if_nametoindex("lo").ok());
        watch.look(|_| {}).expect("a socket that can be read");
        // The whole answer again, as after lost notifications.
        watch.ask_all().expect("an answer");
        assert_eq!(watch.view.state(), state);
    }
}
