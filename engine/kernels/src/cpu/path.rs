//! Instruction sets: which there are, which this machine has, and how a loop is compiled for each.
//!
//! Apart because this is the only file that names them. A loop is written once, as an `inline(always)` function
//! over arrays of 16 that is generic over [`Set`]; `for_each_path!` wraps it in one function per set, inside which
//! the compiler turns the arrays into registers. What runs is chosen once, when the device is made. Must not
//! know: what the loops compute.

/// Instruction sets, the plainest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Avx512,
    Avx2,
    Neon,
    Portable,
}

impl Path {
    /// The sets this machine has, the fastest first.
    pub fn available() -> Vec<Path> {
        let mut paths = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") {
                paths.push(Path::Avx512);
            }
            if avx2 {
                paths.push(Path::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            paths.push(Path::Neon);
        }
        paths.push(Path::Portable);
        paths
    }

    pub fn name(self) -> &'static str {
        match self {
            Path::Avx512 => "avx512",
            Path::Avx2 => "avx2",
            Path::Neon => "neon",
            Path::Portable => "portable",
        }
    }

    /// Rows of activations and panels of weights that one tile covers, for up to `rows` rows. Bounded by
    /// registers: a row and panel has 16 sums, one register on AVX-512, two on AVX2, four on NEON. Few rows take
    /// more panels, so that enough streams of weights are read at once: on AVX-512 one row with four panels read
    /// 12 % faster than with two. Six rows of one panel on AVX2 were 8 % faster than four.
    pub fn tile(self, rows: usize) -> (usize, usize) {
        let (sums, rows_max) = match self {
            Path::Avx512 => (16, 8),
            Path::Avx2 => (4, 6),
            Path::Neon | Path::Portable => (4, 4),
        };
        let rows = rows.min(rows_max);
        let panels = [4, 2, 1].into_iter().find(|panels| rows * panels <= sums);
        (rows, panels.unwrap_or(1))
    }
}

/// What the loops must know of the set they are compiled for.
pub trait Set {
    /// Rows and panels of the tiles of attention.
    const ROWS: usize;
    const PANELS: usize;

    /// a * b + c, rounded once where the set has an instruction for it.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;
}

/// 32 registers of 16 lanes.
#[allow(dead_code, reason = "which sets are compiled depends on the target")]
pub struct Wide;
/// Registers of fewer lanes.
#[allow(dead_code, reason = "which sets are compiled depends on the target")]
pub struct Narrow;
/// No fused multiply-add: where the instruction is missing, `mul_add` is a slow call into the library.
pub struct Plain;

impl Set for Wide {
    const ROWS: usize = 8;
    const PANELS: usize = 2;

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Set for Narrow {
    const ROWS: usize = 4;
    const PANELS: usize = 1;

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Set for Plain {
    const ROWS: usize = 4;
    const PANELS: usize = 1;

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Makes one function for each instruction set, and the one that chooses. The body names its set `S`.
macro_rules! for_each_path {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $body:expr) => {
        $(#[$doc])*
        #[inline]
        pub fn $name(path: $crate::cpu::Path, $($arg: $type),*) {
            use $crate::cpu::{Path, path};
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            fn avx512($($arg: $type),*) {
                type S = path::Wide;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                type S = path::Narrow;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            fn neon($($arg: $type),*) {
                type S = path::Narrow;
                $body
            }
            fn portable($($arg: $type),*) {
                type S = path::Plain;
                $body
            }
            match path {
                // SAFETY (all three): a device is made with a path that `Path::available` found on this machine.
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                Path::Neon => unsafe { neon($($arg),*) },
                #[allow(unreachable_patterns, reason = "which of the paths above exist depends on the target")]
                Path::Avx512 | Path::Avx2 | Path::Neon | Path::Portable => portable($($arg),*),
            }
        }
    };
}

pub(super) use for_each_path;
