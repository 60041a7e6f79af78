//! sideway, a crate for programs in Rust that use verbs: its tests and examples, as they are. It finds the libraries with
//! `dlopen`.
