//! Symbols with versions.
//!
//! A function of Rust cannot have a symbol version: what the compiler hands to the linker by name is local, or has no
//! version. So each exported name is a jump of its own, in assembly, which the assembler gives name and version.

/// Exports functions under names and versions: `@@` for the version that the linker takes for new programs, `@` for
/// others.
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
