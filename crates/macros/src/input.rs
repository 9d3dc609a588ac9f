//! Input of the macro: modules with the files of their kernels, and their settings.

use std::env;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Ident, LitStr, Result, Token, Type, Visibility, braced, bracketed,
    parenthesized,
};

/// Modules, and the path of the crate `kiln`.
pub(crate) struct Input {
    pub(crate) kiln: TokenStream,
    pub(crate) modules: Vec<Module>,
}

/// A module to generate.
pub(crate) struct Module {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) name: Ident,
    pub(crate) source: Source,
    pub(crate) settings: Settings,
}

/// Origin of the device code.
pub(crate) enum Source {
    File(Text),
    OpenClC(Text),
}

/// Text that is known when the macro runs.
pub(crate) struct Text {
    pub(crate) value: String,
    pub(crate) span: Span,
    /// Environment variables that the text contains.
    pub(crate) variables: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) options: Option<LitStr>,
    /// Kernels to generate functions for; all of the file if `None`.
    pub(crate) kernels: Option<Vec<Ident>>,
    pub(crate) types: Vec<StatedType>,
}

/// Type of Rust for a type of the device code.
pub(crate) struct StatedType {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let kiln = kiln_path(input)?;
        let mut modules: Vec<Module> = Vec::new();
        while !input.is_empty() {
            let module: Module = input.parse()?;
            if modules.iter().any(|other| other.name == module.name) {
                let problem = format!("the module `{}` is declared twice", module.name);
                return Err(Error::new(module.name.span(), problem));
            }
            modules.push(module);
        }
        Ok(Self { kiln, modules })
    }
}

/// Reads the path of the crate `kiln`, which `kiln::kernels!` puts in front of its input.
fn kiln_path(input: ParseStream<'_>) -> Result<TokenStream> {
    let path;
    bracketed!(path in input);
    path.parse()
}

impl Parse for Module {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        input.parse::<Token![mod]>()?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let source = input.parse()?;
        let settings = if input.peek(syn::token::Brace) {
            input.parse()?
        } else if input.peek(Token![;]) {
            input.parse::<Token![;]>()?;
            Settings::default()
        } else {
            return Err(input.error("expected `;`, or settings in braces"));
        };
        Ok(Self { attributes, visibility, name, source, settings })
    }
}

impl Parse for Source {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(Ident) && input.peek2(syn::token::Paren) {
            let keyword: Ident = input.parse()?;
            if keyword != "opencl_c" {
                let problem = "expected the path of a file, or `opencl_c(\"kernel void ..\")`";
                return Err(Error::new(keyword.span(), problem));
            }
            let text;
            parenthesized!(text in input);
            let source = Self::OpenClC(text.parse()?);
            return if text.is_empty() { Ok(source) } else { Err(text.error("expected one text")) };
        }
        Ok(Self::File(input.parse()?))
    }
}

impl Parse for Text {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(LitStr) {
            let literal: LitStr = input.parse()?;
            return Ok(Self {
                value: literal.value(),
                span: literal.span(),
                variables: Vec::new(),
            });
        }
        if !(input.peek(Ident) && input.peek2(Token![!])) {
            return Err(input.error("expected a string, `concat!(..)` or `env!(..)`"));
        }
        let name: Ident = input.parse()?;
        input.parse::<Token![!]>()?;
        let arguments;
        parenthesized!(arguments in input);
        let parts = Punctuated::<Text, Token![,]>::parse_terminated(&arguments)?;
        let value = parts.iter().map(|part| &*part.value).collect::<String>();
        let span = parts.first().map_or(name.span(), |part| part.span);
        let mut variables: Vec<_> = parts.iter().flat_map(|part| part.variables.clone()).collect();
        match &*name.to_string() {
            "concat" => Ok(Self { value, span, variables }),
            "env" if parts.len() == 1 => {
                let set = env::var(&value).map_err(|_| {
                    let problem =
                        format!("the environment variable `{value}` is not set, or not UTF-8");
                    Error::new(span, problem)
                })?;
                variables.push(value);
                Ok(Self { value: set, span, variables })
            }
            _ => {
                Err(Error::new(name.span(), "expected a string, `concat!(..)` or `env!(\"NAME\")`"))
            }
        }
    }
}

impl Parse for Settings {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let content;
        braced!(content in input);
        let mut settings = Self::default();
        while !content.is_empty() {
            settings.add(&content)?;
        }
        Ok(settings)
    }
}

impl Settings {
    /// Reads one setting.
    fn add(&mut self, input: ParseStream<'_>) -> Result<()> {
        if input.peek(Token![type]) {
            input.parse::<Token![type]>()?;
            let stated: StatedType = input.parse()?;
            if self.types.iter().any(|other| other.name == stated.name) {
                let problem = format!("the type `{}` is stated twice", stated.name);
                return Err(Error::new(stated.name.span(), problem));
            }
            self.types.push(stated);
        } else {
            self.add_named(input)?;
        }
        input.parse::<Token![;]>().map(drop)
    }

    fn add_named(&mut self, input: ParseStream<'_>) -> Result<()> {
        let name: Ident = input.parse()?;
        input.parse::<Token![=]>()?;
        let is_twice = match &*name.to_string() {
            "options" => self.options.replace(input.parse()?).is_some(),
            "kernels" => {
                let list;
                bracketed!(list in input);
                let parse = syn::ext::IdentExt::parse_any;
                let names = Punctuated::<Ident, Token![,]>::parse_terminated_with(&list, parse)?;
                self.kernels.replace(names.into_iter().collect()).is_some()
            }
            other => {
                let problem = format!(
                    "`{other}` is not a setting; expected `options = \"-D N=4\"`, `kernels = [..]` or \
                     `type Name = crate::Name`"
                );
                return Err(Error::new(name.span(), problem));
            }
        };
        match is_twice {
            true => Err(Error::new(name.span(), format!("`{name}` is set twice"))),
            false => Ok(()),
        }
    }
}

impl Parse for StatedType {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = input.call(syn::ext::IdentExt::parse_any)?;
        input.parse::<Token![=]>()?;
        let ty: Type = input.parse()?;
        if let Some(alone) = single_name(&ty) {
            let problem = format!(
                "`{alone}` is looked up in the generated module; write `super::{alone}` for a type \
                 beside the macro, or `crate::..`"
            );
            return Err(Error::new(ty.span(), problem));
        }
        Ok(Self { name, ty })
    }
}

/// Types that every module knows.
const PRIMITIVE: [&str; 14] = [
    "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "i128", "u128", "f32", "f64", "isize",
    "usize",
];

/// Returns the name of a type that is only a name, and that the generated module does not know.
fn single_name(ty: &Type) -> Option<&Ident> {
    let Type::Path(path) = ty else { return None };
    let is_alone = path.qself.is_none() && path.path.leading_colon.is_none();
    let segment =
        path.path.segments.first().filter(|_| is_alone && path.path.segments.len() == 1)?;
    let name = segment.ident.to_string();
    (!PRIMITIVE.contains(&&*name)).then_some(&segment.ident)
}

impl StatedType {
    /// Returns the type as it is written.
    pub(crate) fn in_words(&self) -> String {
        self.ty.to_token_stream().to_string().replace(' ', "")
    }
}
