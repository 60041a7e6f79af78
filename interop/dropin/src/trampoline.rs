//! Symbols with versions.
//!
//! A Rust function cannot have a symbol version: a name that the compiler passes to the linker is local or unversioned.
//! So each exported name is a separate jump in assembly, and the assembler gives it the name and the version.

/// Exports functions under names and versions. `@@` marks the version that the linker picks for new programs; `@` marks
/// the others.
macro_rules! exports {
    ($($name:literal $version:literal => $function:path;)*) => {$(
        std::arch::global_asm!(
            concat!(".pushsection .text.dropin.", $name, $version, ",\"ax\",@progbits"),
            concat!(".globl \"__dropin_", $name, $version, "\""),
            concat!(".type \"__dropin_", $name, $version, "\",@function"),
            concat!("\"__dropin_", $name, $version, "\":"),
            jump!(),
            concat!(".size \"__dropin_", $name, $version, "\", .-\"__dropin_", $name, $version, "\""),
            concat!(".symver \"__dropin_", $name, $version, "\", ", $name, $version, ", remove"),
            ".popsection",
            sym $function
        );
    )*};
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {0}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {0}"
    };
}

pub(crate) use {exports, jump};
