//! Closed enums whose variants have a name for machines and a sentence for people, in one list.
//!
//! Apart so that a variant cannot be left out of the journal, the labels or the page. Must not know: which enums.

/// Defines a closed enum with `ALL`, `name`, `meaning`, `Display` and `Serialize` (as its name).
macro_rules! named {
    ($(#[$about:meta])* pub enum $Name:ident { $($Variant:ident = $name:literal: $meaning:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $Name {
            $(#[doc = $meaning] $Variant,)+
        }

        impl $Name {
            /// Every variant, in order.
            pub const ALL: &'static [$Name] = &[$($Name::$Variant,)+];

            /// The name in the journal and in labels.
            pub fn name(self) -> &'static str {
                match self {
                    $($Name::$Variant => $name,)+
                }
            }

            /// What it means, for people.
            pub fn meaning(self) -> &'static str {
                match self {
                    $($Name::$Variant => $meaning,)+
                }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl serde::Serialize for $Name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

pub(crate) use named;
