//! Work-item functions, and the extended instructions of OpenCL.std.

use kiln_spirv::Result;
use kiln_spirv::edit::{Instruction, View};
use rspirv::spirv::{BuiltIn, Decoration, FPRoundingMode, OpenclStd100Op as Std};

use super::arithmetic::unsigned;
use super::function::Body;
use super::types::{Lanes, Scalar, Type};
use super::{Emitter, damaged, malformed, typed, unsupported};

/// Returns the work-item function that yields one dimension of a built-in value.
fn function_of(built_in: BuiltIn) -> Option<&'static str> {
    Some(match built_in {
        BuiltIn::GlobalSize => "get_global_size",
        BuiltIn::GlobalInvocationId => "get_global_id",
        // In OpenCL 1.2, all work-groups have the same size.
        BuiltIn::WorkgroupSize | BuiltIn::EnqueuedWorkgroupSize => "get_local_size",
        BuiltIn::LocalInvocationId => "get_local_id",
        BuiltIn::NumWorkgroups => "get_num_groups",
        BuiltIn::WorkgroupId => "get_group_id",
        BuiltIn::GlobalOffset => "get_global_offset",
        _ => return None,
    })
}

/// Returns the function that yields a built-in value of subgroups.
fn function_of_subgroups(built_in: BuiltIn) -> Option<&'static str> {
    Some(match built_in {
        BuiltIn::SubgroupSize => "get_sub_group_size",
        BuiltIn::SubgroupMaxSize => "get_max_sub_group_size",
        BuiltIn::NumSubgroups => "get_num_sub_groups",
        BuiltIn::NumEnqueuedSubgroups => "get_enqueued_num_sub_groups",
        BuiltIn::SubgroupId => "get_sub_group_id",
        BuiltIn::SubgroupLocalInvocationId => "get_sub_group_local_id",
        _ => return None,
    })
}

impl Body<'_, '_> {
    /// Returns the value of an input variable, which the device sets.
    pub(super) fn input(&mut self, variable: u32, ty: u32) -> Result<String> {
        let built_in = self.built_in(variable);
        let built_in = built_in.ok_or_else(|| unsupported("a variable of class Input"))?;
        if let Some(function) = function_of_subgroups(built_in) {
            self.need_subgroups();
            return Ok(format!("{function}()"));
        }
        match built_in {
            BuiltIn::WorkDim => return Ok("get_work_dim()".to_owned()),
            BuiltIn::GlobalLinearId => {
                return Ok("((get_global_id(2) - get_global_offset(2)) * get_global_size(1) \
                     + get_global_id(1) - get_global_offset(1)) * get_global_size(0) \
                     + get_global_id(0) - get_global_offset(0)"
                    .to_owned());
            }
            BuiltIn::LocalInvocationIndex => {
                return Ok("(get_local_id(2) * get_local_size(1) + get_local_id(1)) \
                     * get_local_size(0) + get_local_id(0)"
                    .to_owned());
            }
            _ => {}
        }
        let function = function_of(built_in);
        let function = function.ok_or_else(|| unsupported(format!("BuiltIn {built_in:?}")))?;
        let lanes = self.emitter.lanes(ty)?;
        let calls: Vec<_> = (0..lanes.count).map(|at| format!("{function}({at})")).collect();
        Ok(format!("({lanes})({})", calls.join(", ")))
    }

    /// Returns the work-item function whose results form a vector, if the vector is loaded from an input
    /// variable.
    pub(super) fn function_of_dimensions(&self, vector: u32) -> Option<&'static str> {
        let load = self.emitter.definition(vector).ok()?;
        let View::Load { pointer, .. } = load.view() else { return None };
        function_of(self.built_in(pointer)?)
    }

    fn built_in(&self, variable: u32) -> Option<BuiltIn> {
        let operands = self.emitter.decoration(variable, Decoration::BuiltIn)?;
        BuiltIn::from_u32(*operands.first()?)
    }

    pub(super) fn extended(&mut self, instruction: &Instruction<'_>) -> Result<()> {
        let (ty, id) = typed(instruction)?;
        let View::ExtInst { function: number, operands, .. } = instruction.view() else {
            return Err(damaged(instruction));
        };
        let Some(std) = Std::from_u32(number) else {
            return Err(unsupported(format!("instruction {number} of OpenCL.std")));
        };
        let operands: Vec<_> = operands.iter().collect();
        let types = operands.iter().filter_map(|&id| self.emitter.type_of(id).ok());
        for ty in types.chain([ty]) {
            if let Ok(lanes) = self.emitter.lanes(ty)
                && lanes.is_odd()
            {
                let bits = lanes.bits();
                return Err(unsupported(format!("`{std:?}` of integers of {bits} bits")));
            }
        }
        let text = self
            .extended_text(std, ty, &operands)
            .map_err(|error| error.within(format!("instruction `{std:?}` of OpenCL.std")))?;
        if self.emitter.is_void(ty)? {
            self.line(&format!("{text};"));
            return Ok(());
        }
        self.assign(id, ty, &text)
    }

    fn extended_text(&mut self, std: Std, ty: u32, operands: &[u32]) -> Result<String> {
        let get = |index: usize| -> Result<u32> {
            operands.get(index).copied().ok_or_else(|| malformed(format!("{std:?}")))
        };
        let name = format!("{std:?}");
        Ok(match std {
            Std::fma => {
                let function = self.emitter.fma(self.emitter.lanes(ty)?);
                self.function(&function, operands)?
            }
            Std::fclamp => self.function("clamp", operands)?,
            Std::fmax_common => self.function("max", operands)?,
            Std::fmin_common => self.function("min", operands)?,
            Std::s_abs => {
                let (value, signed) = (self.value(get(0)?)?, self.signed(get(0)?)?);
                let zero = format!("({})(0)", self.emitter.lanes(ty)?.signed());
                self.select_by(ty, &format!("{signed} < {zero}"), &format!("-{value}"), &value)?
            }
            Std::s_abs_diff => {
                let (a, b) = (self.value(get(0)?)?, self.value(get(1)?)?);
                let (left, right) = (self.signed(get(0)?)?, self.signed(get(1)?)?);
                let (yes, no) = (format!("{a} - {b}"), format!("{b} - {a}"));
                self.select_by(ty, &format!("{left} > {right}"), &yes, &no)?
            }
            Std::s_add_sat
            | Std::s_sub_sat
            | Std::s_hadd
            | Std::s_rhadd
            | Std::s_clamp
            | Std::s_mad_hi
            | Std::s_mad_sat
            | Std::s_max
            | Std::s_min
            | Std::s_mul_hi
            | Std::s_mad24
            | Std::s_mul24 => {
                let text = self.signed_function(&name[2..], operands)?;
                format!("{}({text})", unsigned(self.emitter.lanes(ty)?))
            }
            Std::u_add_sat
            | Std::u_sub_sat
            | Std::u_hadd
            | Std::u_rhadd
            | Std::u_clamp
            | Std::u_mad_sat
            | Std::u_max
            | Std::u_min
            | Std::u_mad24
            | Std::u_mul24
            | Std::u_abs
            | Std::u_abs_diff
            | Std::u_mul_hi
            | Std::u_mad_hi
            | Std::u_upsample => self.function(&name[2..], operands)?,
            Std::s_upsample => {
                let lanes = self.emitter.lanes(ty)?;
                let (high, low) = (self.signed(get(0)?)?, self.value(get(1)?)?);
                format!("{}(upsample({high}, {low}))", unsigned(lanes))
            }
            Std::ctz => {
                // `ctz` is a function of OpenCL C 2.0, which counts the zeros below the lowest one.
                let lanes = self.emitter.lanes(ty)?;
                let value = self.value(get(0)?)?;
                format!("popcount(({lanes})(~{value} & ({value} - ({lanes})(1))))")
            }
            Std::ldexp | Std::pown | Std::rootn => {
                let (value, exponent) = (self.value(get(0)?)?, self.signed(get(1)?)?);
                format!("{name}({value}, {exponent})")
            }
            Std::ilogb => {
                let text = self.function(&name, operands)?;
                format!("{}({text})", unsigned(self.emitter.lanes(ty)?))
            }
            Std::frexp | Std::lgamma_r | Std::remquo => {
                let last = operands.len().saturating_sub(1);
                let pointer = get(last)?;
                let mut texts = Vec::new();
                for &operand in &operands[..last] {
                    texts.push(self.value(operand)?);
                }
                let signed = self.emitter.lanes(self.pointee(pointer)?)?.signed();
                let (space, pointer) = (self.space(pointer)?, self.value(pointer)?);
                texts.push(format!("({space} {signed} *){pointer}"));
                format!("{name}({})", texts.join(", "))
            }
            Std::vloadn | Std::vload_half | Std::vload_halfn | Std::vloada_halfn => {
                let count = operands.get(2).map(ToString::to_string).unwrap_or_default();
                let name = match std {
                    Std::vload_half => name,
                    _ => name.trim_end_matches('n').to_owned() + &count,
                };
                self.function(&name, operands.get(..2).unwrap_or_default())?
            }
            Std::vstoren => {
                let lanes = self.emitter.lanes(self.emitter.type_of(get(0)?)?)?;
                self.function(&format!("vstore{}", lanes.count), operands)?
            }
            Std::vstore_half
            | Std::vstore_half_r
            | Std::vstore_halfn
            | Std::vstore_halfn_r
            | Std::vstorea_halfn
            | Std::vstorea_halfn_r => {
                let lanes = self.emitter.lanes(self.emitter.type_of(get(0)?)?)?;
                let count = if lanes.is_vector() { lanes.count.to_string() } else { String::new() };
                let function = if name.starts_with("vstorea") { "vstorea" } else { "vstore" };
                let mode = match operands.get(3).map(|mode| FPRoundingMode::from_u32(*mode)) {
                    None => "",
                    Some(Some(FPRoundingMode::RTE)) => "_rte",
                    Some(Some(FPRoundingMode::RTZ)) => "_rtz",
                    Some(Some(FPRoundingMode::RTP)) => "_rtp",
                    Some(Some(FPRoundingMode::RTN)) => "_rtn",
                    Some(None) => return Err(malformed("a rounding mode")),
                };
                let function = format!("{function}_half{count}{mode}");
                self.function(&function, operands.get(..3).unwrap_or_default())?
            }
            Std::select => {
                let condition = self.signed(get(2)?)?;
                format!("select({}, {}, {condition})", self.value(get(0)?)?, self.value(get(1)?)?)
            }
            Std::rint => {
                let value = get(0)?;
                let lanes = self.emitter.lanes(self.emitter.type_of(value)?)?;
                lanes.rint(&self.value(value)?)
            }
            Std::printf => self.printf(operands)?,
            // Prefetching is only a hint.
            Std::prefetch => "(void)0".to_owned(),
            Std::fract | Std::modf | Std::sincos => {
                let pointee = self.pointee(get(1)?)?;
                if !matches!(
                    self.emitter.ty(pointee)?,
                    Type::Scalar(Scalar::Float(_)) | Type::Vector { .. }
                ) {
                    return Err(malformed("a pointer"));
                }
                self.function(&name, operands)?
            }
            _ => self.function(&name, operands)?,
        })
    }

    /// Selects one of two values by a comparison of signed integers. It replaces `abs` and `abs_diff`, which
    /// overflow inside PoCL's library if the highest bit of their result is set.
    fn select_by(&self, ty: u32, condition: &str, yes: &str, no: &str) -> Result<String> {
        Ok(if self.emitter.lanes(ty)?.is_vector() {
            format!("select({no}, {yes}, {condition})")
        } else {
            format!("{condition} ? {yes} : {no}")
        })
    }

    /// Returns a call of a function with operands that are taken as signed.
    fn signed_function(&mut self, name: &str, operands: &[u32]) -> Result<String> {
        let mut texts = Vec::new();
        for &operand in operands {
            texts.push(self.signed(operand)?);
        }
        Ok(format!("{name}({})", texts.join(", ")))
    }
}

impl Emitter<'_> {
    /// Returns the name of the function that multiplies and adds without rounding the product. For scalars, adds a
    /// macro: Intel's compiler for CPUs calls a function of its library for `fma`, which takes several times as long
    /// as the processor's instruction, but compiles the builtin to the instruction (2026.22, with AVX-512).
    fn fma(&mut self, lanes: Lanes) -> String {
        let builtin = match (lanes.is_vector(), lanes.scalar) {
            (false, Scalar::Float(32)) => "__builtin_fmaf",
            (false, Scalar::Float(64)) => "__builtin_fma",
            _ => return "fma".to_owned(),
        };
        let name = self.names.beside_fixed(format!("fma_{lanes}"));
        let text = format!(
            "\n#ifdef __INTEL_LLVM_COMPILER\n#define {name} {builtin}\n#else\n\
             #define {name} fma\n#endif\n"
        );
        self.helpers.insert(name.clone(), text);
        name
    }
}
