//! Named futures over boxed ones, for operations that are rare: whoever stores a future of this
//! crate can say its type.

/// Declares a public named future with the given output.
macro_rules! named_future {
    ($(#[$doc:meta])* $name:ident => $output:ty) => {
        $(#[$doc])*
        ///
        /// # Panics
        ///
        /// If it is polled again after it has given its output.
        #[must_use = "nothing is known of the outcome unless it is awaited"]
        pub struct $name(std::pin::Pin<Box<dyn Future<Output = $output> + Send>>);

        impl $name {
            pub(crate) fn new(future: impl Future<Output = $output> + Send + 'static) -> Self {
                Self(Box::pin(future))
            }
        }

        impl Future for $name {
            type Output = $output;

            fn poll(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                self.0.as_mut().poll(context)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use named_future;
