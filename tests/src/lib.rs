//! rnic tests.
