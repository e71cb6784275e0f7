//! libibverbs, loaded at run time.
//!
//! Owns the table of its functions. Invariant: the library is loaded at most once and never unloaded, so a function
//! pointer from the table stays valid for the life of the process; `ibv_fork_init` has run before the first device is
//! opened. Never links against the library, so a program starts without it.
#![expect(unsafe_code, reason = "loading a C library and typing its symbols")]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::error::Unavailable;
use super::ffi::*;

/// The name that every distribution ships; the number is the ABI's.
const NAME: &str = "libibverbs.so.1";

/// Declares the function table and how it is filled. A symbol in the second group came after the first release that
/// we support (rdma-core 17) and may be missing.
macro_rules! functions {
    (required { $($name:ident: $type:ty,)* } optional { $($opt_name:ident: $opt_type:ty,)* }) => {
        /// The functions of libibverbs that this crate calls.
        pub(super) struct Library {
            $(pub(super) $name: $type,)*
            $(pub(super) $opt_name: Option<$opt_type>,)*
        }

        impl Library {
            fn fill(handle: &Handle) -> Result<Self, Unavailable> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the function's declaration in verbs.h, and the caller keeps the
                        // library loaded for ever.
                        let symbol = unsafe { handle.get::<$type>(stringify!($name).as_bytes()) };
                        *symbol.map_err(|error| Unavailable::Symbol(error.to_string()))?
                    },)*
                    $($opt_name: {
                        // SAFETY: as above.
                        let symbol = unsafe { handle.get::<$opt_type>(stringify!($opt_name).as_bytes()) };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }
    };
}

functions! {
    required {
        ibv_fork_init: unsafe extern "C" fn() -> c_int,
        ibv_get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
        ibv_free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
        ibv_open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
        ibv_close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
        ibv_query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
        ibv_query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
        ibv_query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
        ibv_get_async_event: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int,
        ibv_ack_async_event: unsafe extern "C" fn(*mut ibv_async_event),
        ibv_alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
        ibv_dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
        ibv_reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
        ibv_dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
        ibv_create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
        ibv_destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
        ibv_create_cq: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
        ibv_destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
        ibv_get_cq_event: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
        ibv_ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, u32),
        ibv_create_srq: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
        ibv_modify_srq: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int,
        ibv_destroy_srq: unsafe extern "C" fn(*mut ibv_srq) -> c_int,
        ibv_create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
        ibv_modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
        ibv_query_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
        ibv_destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    }
    optional {
        // rdma-core 32: all valid entries in one call, with their types and without the holes.
        _ibv_query_gid_table: unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
    }
}

/// The loaded library, or why it is not there. The first call decides for the life of the process.
pub(super) fn library() -> Result<&'static Library, &'static Unavailable> {
    static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref()
}

fn load() -> Result<Library, Unavailable> {
    // SAFETY: libibverbs has no initialiser with preconditions.
    let handle = unsafe { Handle::open(Some(NAME), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| Unavailable::Library(error.to_string()))?;
    let library = Library::fill(&handle)?;
    // Never unloaded: the table outlives every handle, and providers register themselves in the library.
    std::mem::forget(handle);
    // Without this a forked child shares pages that the NIC writes, and the parent may lose them at its next write.
    // Since kernel 5.12 the system copies such pages by itself; a failure then means nothing.
    // SAFETY: takes nothing; called before any other verb of this process that goes through this table.
    unsafe { (library.ibv_fork_init)() };
    Ok(library)
}
