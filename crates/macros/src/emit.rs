//! Code that the macro generates: a module with a function for each kernel.

use std::collections::HashSet;
use std::path::Path;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::Error;
use syn::spanned::Spanned;

use crate::docs;
use crate::input::{Input, Module, Source, StatedType};
use crate::names::{identifier, unique};
use crate::signature::{Element, Kernel, Parameter, Passing, Shape};
use crate::source::clang::CLANG;
use crate::source::{Code, DeviceCode, Host, read_file, read_text};

/// Names of `Kernels` that are not those of kernels.
const RESERVED: [&str; 4] = ["build", "from_build", "from_program", "module"];

/// Generates the modules of an invocation. `host_of` returns where the macro runs, for a path at a place of the
/// source.
pub(crate) fn expand(input: &Input, host_of: &dyn Fn(Span) -> Host) -> TokenStream {
    input.modules.iter().map(|module| Emitter::of(module, &input.kiln, host_of).emit()).collect()
}

struct Emitter<'a> {
    module: &'a Module,
    kiln: &'a TokenStream,
    code: DeviceCode,
    /// Place of the path or text in the source.
    span: Span,
    variables: &'a [String],
    errors: Vec<Error>,
    /// Positions of the stated types that kernels use, with the sizes that they need.
    used: HashSet<(usize, Option<u64>)>,
}

impl<'a> Emitter<'a> {
    fn of(module: &'a Module, kiln: &'a TokenStream, host_of: &dyn Fn(Span) -> Host) -> Self {
        let options = module.settings.options.as_ref().map(|options| options.value());
        let options = options.unwrap_or_default();
        let (text, code) = match &module.source {
            Source::File(path) => (path, read_file(&path.value, &host_of(path.span), &options)),
            Source::OpenClC(text) => {
                let host = host_of(text.span);
                let folder = host.folder.clone().unwrap_or_default();
                let name = module.name.to_string();
                (text, read_text(&text.value, &name, &folder, &host, &options))
            }
        };
        let (span, variables) = (text.span, &text.variables);
        Self { module, kiln, code, span, variables, errors: Vec::new(), used: HashSet::new() }
    }

    fn problem(&mut self, problem: impl Into<String>) {
        self.errors.push(Error::new(self.span, problem.into()));
    }

    fn emit(mut self) -> TokenStream {
        let problems = std::mem::take(&mut self.code.problems);
        for problem in problems {
            self.problem(problem);
        }
        let kernels = self.chosen_kernels();
        let functions: Vec<_> = kernels.iter().filter_map(|kernel| self.function(kernel)).collect();
        let checks = self.type_checks();
        let Module { attributes, visibility, name, .. } = self.module;
        let (kernels, doc) = (self.kernels(&functions), self.module_doc());
        let watched = self.watched();
        let errors = self.errors.iter().map(Error::to_compile_error);
        quote! {
            #(#attributes)*
            #[doc = #doc]
            #[allow(
                dead_code, missing_docs, non_snake_case, unreachable_pub, unused_qualifications,
                clippy::all, clippy::pedantic, clippy::nursery
            )]
            #visibility mod #name {
                #(#errors)*
                #watched
                #checks
                #kernels
            }
        }
    }

    /// Returns the kernels to generate functions for.
    fn chosen_kernels(&mut self) -> Vec<Kernel> {
        let kernels = std::mem::take(&mut self.code.kernels);
        // The kernels of code that cannot be read are not known.
        if self.errors.is_empty() {
            self.check_choice(&kernels);
        }
        let Some(chosen) = &self.module.settings.kernels else { return kernels };
        let is_chosen = |kernel: &Kernel| chosen.iter().any(|name| plain(name) == *kernel.name);
        kernels.into_iter().filter(is_chosen).collect()
    }

    /// Reports a file without kernels, and chosen kernels that it does not have.
    fn check_choice(&mut self, kernels: &[Kernel]) {
        if kernels.is_empty() {
            let name = &self.code.name;
            self.problem(format!(
                "`{name}` defines no kernel; declare one as `kernel void name(..) {{ .. }}`"
            ));
            return;
        }
        let known: Vec<_> = kernels.iter().map(|kernel| format!("`{}`", kernel.name)).collect();
        for name in self.module.settings.kernels.iter().flatten() {
            if kernels.iter().all(|kernel| *kernel.name != *plain(name)) {
                let problem =
                    format!("no kernel is named `{name}`; there are {}", known.join(", "));
                self.errors.push(Error::new(name.span(), problem));
            }
        }
    }

    /// Returns the function of a kernel; `None`, with errors, if a launch cannot pass what the kernel takes.
    fn function(&mut self, kernel: &Kernel) -> Option<Function> {
        let types = self.parameter_types(kernel)?;
        let (kiln, name) = (self.kiln, kernel.name.to_string());
        // Messages of the compiler about the function point at the path, not at the whole invocation.
        let span = Span::call_site().located_at(self.span);
        let (names, range) = parameter_names(kernel, span);
        let is_reserved = RESERVED.contains(&&*name);
        let ident = if is_reserved { format!("{name}_") } else { name.clone() };
        let ident = identifier(&ident, span);
        let doc = docs::of_kernel(kernel, &names, &range, &self.code.name);
        let given = kernel.parameters.iter().flatten().zip(&names);
        let given = given.map(|(parameter, name)| match parameter.passing {
            // Before the program is built, nothing else states that the kernel only reads.
            Passing::ReadBuffer => quote_spanned!(span=> #name.read_only()),
            _ => name.to_token_stream(),
        });
        let body = quote_spanned! {span=>
            #(#[doc = #doc])*
            pub fn #ident(
                &self,
                #range: impl #kiln::launch::IntoNdSize
                #(, #names: #types)*
            ) -> #kiln::Launch {
                self.#ident.launch(#range)#(.arg(#given))*
            }
        };
        Some(Function { name, ident, body })
    }

    /// Returns the types of a function's parameters; `None`, with errors, if some have none.
    fn parameter_types(&mut self, kernel: &Kernel) -> Option<Vec<TokenStream>> {
        let place = kernel.place.as_ref().map(ToString::to_string);
        let place = place.unwrap_or_else(|| self.code.name.clone());
        let mut types = Vec::new();
        for parameter in &kernel.parameters {
            let ty = parameter.as_ref().map_err(Clone::clone).and_then(|parameter| {
                let ty = self.parameter_type(parameter);
                ty.map_err(|why| format!("{place}: parameter `{}`: {why}", parameter.declaration))
            });
            match ty {
                Ok(ty) => types.push(ty),
                Err(why) => self.problem(format!("kernel `{}`: {why}", kernel.name)),
            }
        }
        (types.len() == kernel.parameters.len()).then_some(types)
    }

    /// Returns the type of a function's parameter.
    fn parameter_type(&mut self, parameter: &Parameter) -> Result<TokenStream, String> {
        let kiln = self.kiln;
        let span = Span::call_site().located_at(self.span);
        let element = self.element(&parameter.element)?;
        Ok(match parameter.passing {
            Passing::Value => element,
            Passing::ReadBuffer => quote_spanned!(span=> &#kiln::Buffer<#element>),
            Passing::Buffer => quote_spanned!(span=> impl #kiln::launch::WritableBuffer<#element>),
            Passing::Local => quote_spanned!(span=> #kiln::Local<#element>),
            Passing::ReadImage => quote_spanned!(span=> &#element),
            Passing::Image => quote_spanned!(span=> impl #kiln::launch::WritableImage),
        })
    }

    fn element(&mut self, element: &Element) -> Result<TokenStream, String> {
        let kiln = self.kiln;
        let stated = &self.module.settings.types;
        let is_named =
            |stated: &StatedType| element.names.iter().any(|name| **name == *plain(&stated.name));
        let is_object = matches!(element.shape, Shape::Image | Shape::Sampler);
        if let Some(at) = stated.iter().position(is_named).filter(|_| !is_object) {
            self.used.insert((at, element.layout.map(|layout| layout.size)));
            return Ok(stated[at].ty.to_token_stream());
        }
        match &element.shape {
            Shape::Rust(name) => Ok(format_ident!("{name}").to_token_stream()),
            Shape::Array(inner, length) => {
                let inner = self.element(inner)?;
                let length = usize::try_from(*length).map_err(|_| "the array is too long")?;
                let length = proc_macro2::Literal::usize_unsuffixed(length);
                Ok(quote!([#inner; #length]))
            }
            Shape::Image => Ok(quote!(#kiln::Image<impl #kiln::images::Pixel>)),
            Shape::Sampler => Ok(quote!(#kiln::images::Sampler)),
            Shape::Stated(why) => {
                let name = element.names.first().map_or("Name", |name| name);
                Err(format!("{why}; write `{{ type {name} = crate::..; }}` behind the path"))
            }
        }
    }

    /// Returns checks of the types that the application states: by the compiler, at the place of each type.
    fn type_checks(&mut self) -> TokenStream {
        let kiln = self.kiln;
        let mut checks = TokenStream::new();
        let stated = &self.module.settings.types;
        for (at, StatedType { name, ty }) in stated.iter().enumerate() {
            let mut sizes: Vec<_> = self.used.iter().filter(|(used, _)| *used == at).collect();
            sizes.sort();
            if sizes.is_empty() && self.errors.is_empty() {
                let problem = format!("no parameter of these kernels has the type `{name}`");
                self.errors.push(Error::new(name.span(), problem));
            }
            let span = ty.span();
            checks.extend(quote_spanned! {span=>
                const _: fn() = || {
                    fn is_pod<T: #kiln::bytemuck::Pod>() {}
                    is_pod::<#ty>();
                };
            });
            for size in sizes.into_iter().filter_map(|(_, size)| *size) {
                let problem = format!(
                    "`{}` needs the {size} bytes of `{name}` in `{}`",
                    stated[at].in_words(),
                    self.code.name
                );
                checks.extend(quote_spanned! {span=>
                    const _: () = ::core::assert!(
                        ::core::mem::size_of::<#ty>() as u64 == #size, #problem
                    );
                });
            }
        }
        checks
    }

    /// Returns constants that make the compiler watch files and environment variables.
    fn watched(&self) -> TokenStream {
        // The first file is embedded as it is, unless its includes are replaced.
        let is_embedded = matches!(self.code.code, Code::TextFile | Code::SpirV);
        let files = self.code.files.iter().skip(usize::from(is_embedded));
        let files = files.filter_map(|file| path_literal(file));
        let variables = self.variables;
        let clang = self.code.depends_on_clang.then_some(CLANG).into_iter();
        quote! {
            #(const _: &[u8] = ::core::include_bytes!(#files);)*
            #(const _: &str = ::core::env!(#variables);)*
            #(const _: ::core::option::Option<&str> = ::core::option_env!(#clang);)*
        }
    }

    fn module_doc(&self) -> String {
        format!("Kernels of `{}`, as typed functions of `Kernels`.", self.code.name)
    }

    /// Returns the expression of the module's device code.
    fn module_expression(&self) -> TokenStream {
        let kiln = self.kiln;
        let file = self.code.files.first().and_then(|file| path_literal(file));
        match (&self.code.code, file) {
            (Code::TextFile, Some(file)) => {
                quote!(#kiln::Module::opencl_c(::core::include_str!(#file)))
            }
            (Code::SpirV, Some(file)) => {
                quote!(#kiln::Module::spirv(&::core::include_bytes!(#file)[..])?)
            }
            (Code::Text(text), _) => quote!(#kiln::Module::opencl_c(#text)),
            _ => quote!(#kiln::Module::opencl_c("")),
        }
    }

    /// Returns the structure of the kernels, with its functions.
    fn kernels(&mut self, functions: &[Function]) -> TokenStream {
        let kiln = self.kiln;
        let mut distinct: Vec<&Function> = Vec::new();
        for function in functions {
            if let Some(other) = distinct.iter().find(|other| other.ident == function.ident) {
                let (first, second) = (&other.name, &function.name);
                let problem = match first == second {
                    true => format!("`{}` defines the kernel `{first}` twice", self.code.name),
                    false => format!(
                        "the kernels `{first}` and `{second}` would both be functions `{}`; choose one \
                         with `kernels = [..]`",
                        function.ident
                    ),
                };
                self.problem(problem);
            } else {
                distinct.push(function);
            }
        }
        let fields: Vec<_> = distinct.iter().map(|function| &function.ident).collect();
        let names: Vec<_> = distinct.iter().map(|function| &function.name).collect();
        let bodies = distinct.iter().map(|function| &function.body);
        let (module, label) = (self.module_expression(), &self.code.name);
        let options = self.code.options.iter();
        quote! {
            /// Built kernels, whose launches are checked. Cheap to clone.
            #[derive(Clone, Debug)]
            pub struct Kernels {
                #(#fields: #kiln::Kernel,)*
            }

            impl Kernels {
                /// Returns the module with the kernels' device code, to be built with other settings than
                /// those of [`build`](Self::build), or to be registered as a device library.
                ///
                /// # Errors
                ///
                /// If the module is damaged; OpenCL C cannot be.
                pub fn module() -> #kiln::Result<#kiln::Module> {
                    ::core::result::Result::Ok(#module.with_label(#label)#(.with_options(#options))*)
                }

                /// Builds the kernels for the device of a runtime. Concurrent requests share one build.
                ///
                /// # Errors
                ///
                /// Fails like the build of a program, or if a kernel cannot be checked.
                ///
                /// # Cancel safety
                ///
                /// The future can be dropped at any time; the build goes on.
                pub fn build(
                    runtime: &#kiln::Runtime,
                ) -> impl ::core::future::Future<Output = #kiln::Result<Self>>
                + ::core::marker::Send
                + use<> {
                    let request = Self::module().map(|module| runtime.build(&module).checked());
                    async move { Self::from_program(&request?.await?) }
                }

                /// Takes the kernels from a program that was built from [`module`](Self::module).
                ///
                /// # Errors
                ///
                /// If the program lacks a kernel, or if a kernel cannot be checked.
                pub fn from_program(program: &#kiln::CheckedProgram) -> #kiln::Result<Self> {
                    ::core::result::Result::Ok(Self { #(#fields: program.kernel(#names)?,)* })
                }

                /// Takes the kernels from a build of [`module`](Self::module) that may not have ended.
                /// Launches wait for the build, and fail with its error.
                #[must_use]
                pub fn from_build(build: &#kiln::build::CheckedBuild) -> Self {
                    Self { #(#fields: build.kernel(#names),)* }
                }

                #(#bodies)*
            }
        }
    }
}

/// A function for a kernel.
struct Function {
    /// Name of the kernel.
    name: String,
    ident: Ident,
    body: TokenStream,
}

/// Returns the names of a function's parameters: those for the kernel's own, and that for the range.
fn parameter_names(kernel: &Kernel, span: Span) -> (Vec<Ident>, Ident) {
    let mut taken = HashSet::new();
    let mut names = Vec::new();
    for (at, parameter) in kernel.parameters.iter().flatten().enumerate() {
        let name = match &parameter.name {
            Some(name) => name.to_string(),
            None => format!("argument_{at}"),
        };
        names.push(identifier(&unique(&name, &mut taken), span));
    }
    let range = identifier(&unique("range", &mut taken), span);
    (names, range)
}

/// Returns a name without the `r#` of a raw identifier.
fn plain(name: &Ident) -> String {
    let name = name.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}

fn path_literal(path: &Path) -> Option<&str> {
    path.to_str()
}
