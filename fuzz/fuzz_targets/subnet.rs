#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rnic_tests::fuzz::subnet(data));
