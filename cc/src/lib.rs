//! cc
