//! Translation of a file in which llvm-spirv refuses the optimised code of some functions.
//!
//! Only those functions are optimised less: they are excluded while clang optimises the others, then optimised
//! in ways that create less of what llvm-spirv refuses, while the others are excluded. What is refused even
//! then stays unoptimised, except that llvm-spirv keeps the values of variables in registers.

use std::collections::HashSet;

use super::assembly::{Assembly, Names, intrinsics_in, untranslatable};
use super::translation::{Fault, OPTIMISED, Strategy, Translated, Translation, translatable};
use crate::error::Error;

/// Ways to optimise functions whose code is refused with [`OPTIMISED`], best first.
const LESS_OPTIMISED: &[Strategy] = &[
    Strategy { adds_integer_widths: true, ..OPTIMISED },
    Strategy { clang: &["-O1"], adds_integer_widths: true, ..OPTIMISED },
];

/// Strategy that keeps the values of variables in registers where nothing is optimised.
const IN_REGISTERS: Strategy = Strategy { llvm_spirv: &["--spirv-mem2reg"], ..OPTIMISED };

/// Maximum number of runs in which further functions turn out to be refused: excluding a function from
/// optimisation also keeps those apart that would be inlined into it.
const MAX_ROUNDS: usize = 4;

/// Maximum number of attempts, each of which knows one more intrinsic function that llvm-spirv refuses.
const MAX_ATTEMPTS: usize = 4;

impl Translation {
    /// Translates a text whose optimised code, `refused`, llvm-spirv does not accept, as `error` states.
    /// Returns `None` if the functions with such code cannot be told from the others. Blocks.
    pub(super) fn in_pieces(
        &self,
        text: &[u8],
        refused: &[u8],
        error: &Error,
    ) -> Result<Option<Translated>, Fault> {
        let mut pieces =
            Pieces { translation: self, intrinsics: HashSet::new(), log: String::new() };
        pieces.learn(error);
        let mut first = pieces.untranslatable(&String::from_utf8_lossy(refused));
        if first.is_empty() {
            return Ok(None);
        }
        let unoptimised = self.unoptimised(text)?;
        let unoptimised = String::from_utf8_lossy(&unoptimised.output).into_owned();
        for _ in 0..MAX_ATTEMPTS {
            let optimised = pieces.optimise(&unoptimised, first.clone())?;
            let log = std::mem::take(&mut pieces.log);
            match self.translated(optimised.into_bytes(), IN_REGISTERS, log) {
                Ok(translated) => return Ok(Some(translated)),
                Err(Fault::Untranslatable(error, assembly)) if pieces.learn(&error) => {
                    first.extend(pieces.untranslatable(&String::from_utf8_lossy(&assembly)));
                }
                Err(Fault::Untranslatable(..)) => return Ok(None),
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }
}

/// Optimisation of a text in pieces.
struct Pieces<'a> {
    translation: &'a Translation,
    /// Intrinsic functions that llvm-spirv is known to refuse.
    intrinsics: HashSet<String>,
    /// Messages of clang.
    log: String,
}

impl Pieces<'_> {
    /// Notes the intrinsic functions that an error of llvm-spirv names. Returns whether there are new ones.
    fn learn(&mut self, error: &Error) -> bool {
        let known = self.intrinsics.len();
        self.intrinsics.extend(intrinsics_in(error.build_log().unwrap_or_default()));
        self.intrinsics.len() > known
    }

    /// Returns the functions of LLVM assembly text that llvm-spirv is known to refuse.
    fn untranslatable(&self, assembly: &str) -> Names {
        let assembly = translatable(assembly);
        untranslatable(&Assembly::of(&assembly), &self.intrinsics)
    }

    /// Optimises LLVM assembly text such that llvm-spirv accepts it. `refused` are functions whose optimised
    /// code it refuses.
    fn optimise(&mut self, unoptimised: &str, refused: Names) -> Result<String, Fault> {
        let calls = Assembly::of(unoptimised);
        let known = |names: Names| names.intersection(&calls.names()).cloned().collect::<Names>();
        let mut refused = calls.innermost(&known(refused));
        let mut text = self.run(unoptimised, &refused, OPTIMISED)?;
        for round in 1..=MAX_ROUNDS {
            let more: Names = self.untranslatable(&text).difference(&refused).cloned().collect();
            if more.is_empty() {
                break;
            }
            refused.extend(if round < MAX_ROUNDS { calls.innermost(&more) } else { more });
            text = self.run(unoptimised, &refused, OPTIMISED)?;
        }
        for &strategy in LESS_OPTIMISED {
            let others = |text: &str, included: &Names| {
                let names = Assembly::of(text).names();
                names.difference(included).cloned().collect::<Names>()
            };
            if refused.is_empty() {
                break;
            }
            let mut optimised = self.run(&text, &others(&text, &refused), strategy)?;
            let still = self.untranslatable(&optimised);
            if !still.is_empty() {
                let included = refused.difference(&still).cloned().collect();
                optimised = self.run(&text, &others(&text, &included), strategy)?;
            }
            if self.untranslatable(&optimised).is_empty() {
                (text, refused) = (optimised, still);
            }
        }
        Ok(text)
    }

    /// Optimises LLVM assembly text, except for the `excluded` functions.
    fn run(&mut self, text: &str, excluded: &Names, strategy: Strategy) -> Result<String, Fault> {
        let input = Assembly::of(text).excluding(excluded);
        let output = self.translation.optimised(input.as_bytes(), strategy, &mut self.log)?;
        Ok(Assembly::of(&String::from_utf8_lossy(&output)).including())
    }
}
