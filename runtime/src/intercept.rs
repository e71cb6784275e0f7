//! tonic's interceptors before any client.

use tonic::metadata::MetadataMap;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::invoke::{Call, Invoke, NewCall, ReadyFuture, StartError};
use crate::session::RequestHead;

/// Passes the metadata of every call through an interceptor before it is sent.
///
/// The interceptor is cloned for every call, and again when a call that was never sent is sent again.
#[derive(Debug, Clone)]
pub struct Intercepted<T, F> {
    inner: T,
    interceptor: F,
}

impl<T, F: Interceptor + Clone> Intercepted<T, F> {
    /// `interceptor` before `inner`.
    pub fn new(inner: T, interceptor: F) -> Self {
        Self { inner, interceptor }
    }
}

impl<T, F> Invoke for Intercepted<T, F>
where
    T: Invoke,
    F: Interceptor + Clone + Send + Sync,
{
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        let metadata = self.intercept(call.head.metadata.clone()).map_err(StartError::Failed)?;
        let head = RequestHead { metadata: &metadata, ..call.head };
        self.inner.start(&NewCall { head, ..*call })
    }

    fn ready(&self) -> ReadyFuture<'_> {
        self.inner.ready()
    }

    fn default_timeout(&self) -> Option<std::time::Duration> {
        self.inner.default_timeout()
    }
}

impl<T, F: Interceptor + Clone> Intercepted<T, F> {
    fn intercept(&self, metadata: MetadataMap) -> Result<MetadataMap, Status> {
        let mut request = Request::new(());
        *request.metadata_mut() = metadata;
        let (metadata, _, ()) = self.interceptor.clone().call(request)?.into_parts();
        Ok(metadata)
    }
}
