#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rnic_tests::fuzz::c_calls(data));
