//! Fault injection: a layer that loses, copies, delays, reorders, damages and marks packets, and makes peers pause,
//! by rules.
//!
//! A rule is one line of text (or the same from [`FaultRule`]'s builder):
//!
//! ```text
//! rule   = [name ":"] [where] match* action [budget] [window]
//! where  = tx | rx | tx>HOST | rx<HOST | HOST>HOST | HOST<>HOST | *    HOST: an IP address, a name, or *
//! match  = data | ack | nak | rnr | atomic | cm                        kinds of packets
//!        | cm=REQ|REP|RTU|...                                          connection management messages
//!        | [rc. | uc. | ud. | xrc.] OPCODE                             write.first send.only_imm read.resp.last cnp ...
//!        | qp=N | qp=#N                                                destination QPN; the N-th to appear, from 0
//!        | psn=N | psn=#N                                              PSN; its distance to the first one seen
//!        | try=N                                                       N-th transmission of that PSN, from 1
//!        | nth=N | every=N                                             of the packets that match the rest, from 1
//!        | size>N | size<N                                             bytes from BTH to ICRC
//!        | ecn=ce|ect0|ect1|not
//! action = drop | dup [N] | delay T [+-T] | reorder N | corrupt icrc|payload|header|bit=N | mark ce
//!        | pause=P[,P...]                                              priorities, 0 to 7
//! budget = once | N times | p=0.01 | always                            default: once with psn= or nth=, else always
//! window = [from T] [for T]                                            since the rule was added; T: 80us 1.5ms 2s
//! ```
//!
//! `pause` makes a pause storm. The peer at the other end of the packet, its sender or its receiver, is told to pause
//! these priorities. With `once` or `N times` each matching packet sends one pause of the longest time. Otherwise the
//! first one begins a pause that the port keeps renewing until the window of the rule is over or the rule is removed:
//! `rx data pause=3 for 2s`. Pauses exist only between rnic ports that both have lossless priorities (`pfc`). The
//! watchdog's response is set by `detection_time`, `restoration_time` and `action` of the peer's link.
//!
//! `nth=` and `every=` count repeated packets too. A rule such as `every=50 drop` may meet the first packet of every
//! retransmission, if these are 50 or 100 packets long, until the retries are used up: `p=0.02 drop` does not.
//!
//! Rules combine: all that match a packet act on it, in the order in which they were added, up to the first that
//! drops it. Randomness comes only from the layer's seed and the rule's number, so that a rule draws the same
//! whatever other rules exist.

mod facts;
mod hold;
mod layer;
mod parse;
mod rule;
mod storm;
mod track;
mod words;

pub use layer::{AddError, FaultLayer, NearMiss, RuleStatus};
pub use parse::ParseError;
pub use rule::{Action, Budget, Class, Corruption, Ecn, FaultRule, Match, OpcodePattern, RuleError, Where};

#[cfg(test)]
mod tests;
