//! Frames of languages in call stacks: functions that an interpreter executes, or code that their runtime has made.

/// A language whose runtime keeps stacks of its own. The numbers are those of the recording's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Language {
    /// Python, as CPython executes it.
    Python = 1,
    /// JavaScript, as V8 executes it.
    JavaScript = 2,
    /// Java, and what else is compiled for its virtual machine, as HotSpot executes it.
    Java = 3,
}

impl Language {
    /// All languages.
    pub const ALL: [Self; 3] = [Self::Python, Self::JavaScript, Self::Java];

    /// Its name in reports and recordings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Java => "java",
        }
    }
}

/// Bits of the numbers of functions and of offsets.
const FUNCTION_BITS: u32 = 40;
const OFFSET_BITS: u32 = 19;
/// The highest bits of all such frames. No guest has code there, because the addresses aren't canonical with 4 or 5 levels of page
/// tables (SDM volume 1, section 3.3.7.1).
const MARK: u64 = 0b01;
const MARK_SHIFT: u32 = 62;
/// Stands for an unknown offset.
const NO_OFFSET: u32 = (1 << OFFSET_BITS) - 1;

/// A frame of a language, which stands between the addresses of a call stack: right behind the frame of the machine code that
/// executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LanguageFrame {
    /// The number of its language.
    pub language: u8,
    /// The number of its function, below 2^40.
    pub function: u64,
    /// How far its code has been executed, in the language's units; `None` if that is unknown.
    pub offset: Option<u32>,
}

impl LanguageFrame {
    /// A frame of the function whose number is the lowest bits of `function`.
    pub fn new(language: Language, function: u64, offset: Option<u32>) -> Self {
        Self {
            language: language as u8,
            function: function & ((1 << FUNCTION_BITS) - 1),
            offset: offset.filter(|offset| *offset < NO_OFFSET),
        }
    }

    /// The word that stands for it in a call stack.
    pub fn to_word(self) -> u64 {
        let function = self.function & ((1 << FUNCTION_BITS) - 1);
        let language = u64::from(self.language & 7);
        let offset = self.offset.unwrap_or(NO_OFFSET).min(NO_OFFSET);
        MARK << MARK_SHIFT
            | language << (FUNCTION_BITS + OFFSET_BITS)
            | function << OFFSET_BITS
            | u64::from(offset)
    }

    /// The frame that `word` of a call stack stands for; `None` if it is an address.
    pub fn from_word(word: u64) -> Option<Self> {
        let offset = u32::try_from(word & u64::from(NO_OFFSET)).ok()?;
        (word >> MARK_SHIFT == MARK).then_some(Self {
            language: (word >> (FUNCTION_BITS + OFFSET_BITS) & 7) as u8,
            function: word >> OFFSET_BITS & ((1 << FUNCTION_BITS) - 1),
            offset: (offset != NO_OFFSET).then_some(offset),
        })
    }

    /// The name of its language; `language` for one that this version doesn't know.
    pub fn language_name(self) -> &'static str {
        let mut all = Language::ALL.into_iter();
        let found = all.find(|language| *language as u8 == self.language);
        found.map_or("language", Language::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_convert_to_words_and_back() {
        for function in [0, 1, 0x12_3456_789a, u64::MAX] {
            for offset in [None, Some(0), Some(77), Some(NO_OFFSET - 1)] {
                let frame = LanguageFrame::new(Language::Python, function, offset);
                assert_eq!(LanguageFrame::from_word(frame.to_word()), Some(frame));
                assert_eq!(frame.language_name(), "python");
            }
        }
        for language in Language::ALL {
            let frame = LanguageFrame::new(language, 7, None);
            let found = LanguageFrame::from_word(frame.to_word());
            assert_eq!(found, Some(frame));
            assert_eq!(frame.language_name(), language.name());
        }
        let far = LanguageFrame::new(Language::Python, 1, Some(u32::MAX));
        assert_eq!(far.offset, None);
    }

    #[test]
    fn addresses_are_no_such_frames() {
        let ends = [
            0x7fff_ffff_ffff,
            0x00ff_ffff_ffff_ffff,
            0xffff_8000_0000_0000,
        ];
        for address in ends.into_iter().chain([0, crate::HOST_FRAMES, u64::MAX]) {
            assert_eq!(LanguageFrame::from_word(address), None, "{address:#x}");
        }
    }
}
