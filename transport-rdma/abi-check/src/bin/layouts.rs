//! Compares the size and every offset of our C structs, and the constants we use, with `ibverbs-sys`.
//!
//! Structs that the library allocates are declared by us only up to a point; of those the offsets count, not the size.

/// Our declarations, verbatim.
#[path = "../../../src/verbs/ffi.rs"]
#[allow(dead_code, reason = "only layouts and constants are looked at")]
mod ffi;

use std::mem::{align_of, offset_of, size_of};
use std::process::ExitCode;

use ibverbs_sys as sys;

/// What differed, and how many comparisons there were.
#[derive(Default)]
struct Tally {
    compared: usize,
    different: usize,
}

impl Tally {
    fn compare(&mut self, what: &str, ours: u64, theirs: u64) {
        self.compared += 1;
        if ours != theirs {
            self.different += 1;
            println!("{what}: ours {ours}, ibverbs-sys {theirs}");
        }
    }
}

/// Compares the named fields of a struct; `whole` also its size and alignment.
macro_rules! layout {
    ($tally:ident, $name:ident { $($field:ident $(= $their_field:ident $(. $inner:ident)*)?),* $(,)? } $($whole:ident)?) => {
        $({
            let ours = offset_of!(ffi::$name, $field) as u64;
            let theirs = layout!(@offset $name $field $(= $their_field $(. $inner)*)?) as u64;
            $tally.compare(concat!(stringify!($name), ".", stringify!($field)), ours, theirs);
        })*
        layout!(@size $tally $name $($whole)?);
    };
    (@offset $name:ident $field:ident) => { offset_of!(sys::$name, $field) };
    (@offset $name:ident $field:ident = $their_field:ident $(. $inner:ident)*) => {
        offset_of!(sys::$name, $their_field $(. $inner)*)
    };
    (@size $tally:ident $name:ident) => {};
    (@size $tally:ident $name:ident whole) => {
        let (ours, theirs) = (size_of::<ffi::$name>(), size_of::<sys::$name>());
        $tally.compare(concat!("size of ", stringify!($name)), ours as u64, theirs as u64);
        let (ours, theirs) = (align_of::<ffi::$name>(), align_of::<sys::$name>());
        $tally.compare(concat!("alignment of ", stringify!($name)), ours as u64, theirs as u64);
    };
}

/// Compares constants: ours = theirs.
macro_rules! constants {
    ($tally:ident { $($ours:ident = $theirs:expr),* $(,)? }) => {
        $($tally.compare(stringify!($ours), ffi::$ours as u64, $theirs as u64);)*
    };
}

fn main() -> ExitCode {
    let mut tally = Tally::default();
    objects(&mut tally);
    attributes(&mut tally);
    requests(&mut tally);
    constants(&mut tally);
    println!("layouts: {} of {} comparisons", tally.compared - tally.different, tally.compared);
    match tally.different {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn objects(tally: &mut Tally) {
    layout!(tally, ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path } whole);
    layout!(tally, ibv_context_ops { alloc_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv } whole);
    layout!(tally, ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors });
    layout!(tally, ibv_pd { context, handle } whole);
    layout!(tally, ibv_mr { context, pd, addr, length, handle, lkey, rkey } whole);
    layout!(tally, ibv_mw { context, pd, rkey, handle, mw_type = type_ } whole);
    layout!(tally, ibv_comp_channel { context, fd, refcnt } whole);
    layout!(tally, ibv_cq { context, channel, cq_context, handle, cqe });
    layout!(tally, ibv_srq { context, srq_context, pd, handle });
    layout!(tally, ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type });
}

fn attributes(tally: &mut Tally) {
    layout!(tally, ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
        max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
        max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah,
        max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
    } whole);
    layout!(tally, ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
        pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed,
        phys_state, link_layer, flags, port_cap_flags2, active_speed_ex,
    } whole);
    layout!(tally, ibv_gid { raw } whole);
    layout!(tally, ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex } whole);
    layout!(tally, ibv_srq_attr { max_wr, max_sge, srq_limit } whole);
    layout!(tally, ibv_srq_init_attr { srq_context, attr } whole);
    layout!(tally, ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } whole);
    layout!(tally, ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } whole);
    layout!(tally, ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } whole);
    layout!(tally, ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num } whole);
    layout!(tally, ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
        ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
        max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
    } whole);
    layout!(tally, ibv_async_event { element, event_type } whole);
}

fn requests(tally: &mut Tally) {
    layout!(tally, ibv_sge { addr, length, lkey } whole);
    layout!(tally, ibv_recv_wr { wr_id, next, sg_list, num_sge } whole);
    layout!(tally, ibv_mw_bind_info { mr, addr, length, mw_access_flags } whole);
    // The fields before the immediate are private there; they fill the bytes up to it without a gap.
    layout!(tally, ibv_wc {
        imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
    } whole);
    layout!(tally, ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, xrc_remote_srqn = qp_type } whole);
    // The unions and what is in them have no common names.
    let inner = [
        (
            "imm_or_key",
            offset_of!(ffi::ibv_send_wr, imm_or_key),
            offset_of!(sys::ibv_send_wr, __bindgen_anon_1),
        ),
        ("bind_mw", offset_of!(ffi::ibv_send_wr, bind_mw), offset_of!(sys::ibv_send_wr, __bindgen_anon_2)),
        (
            "rdma.rkey",
            offset_of!(ffi::wr_rdma, rkey),
            offset_of!(sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1, rkey),
        ),
        (
            "atomic.swap",
            offset_of!(ffi::wr_atomic, swap),
            offset_of!(sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2, swap),
        ),
        (
            "atomic.rkey",
            offset_of!(ffi::wr_atomic, rkey),
            offset_of!(sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2, rkey),
        ),
        (
            "bind.rkey",
            offset_of!(ffi::wr_bind_mw, rkey),
            offset_of!(sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1, rkey),
        ),
        (
            "bind.info",
            offset_of!(ffi::wr_bind_mw, bind_info),
            offset_of!(sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1, bind_info),
        ),
    ];
    for (name, ours, theirs) in inner {
        tally.compare(name, ours as u64, theirs as u64);
    }
}

fn constants(tally: &mut Tally) {
    constants!(tally {
        IBV_ACCESS_LOCAL_WRITE = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        IBV_ACCESS_REMOTE_WRITE = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        IBV_ACCESS_REMOTE_READ = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        IBV_ACCESS_REMOTE_ATOMIC = sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
        IBV_ACCESS_MW_BIND = sys::ibv_access_flags::IBV_ACCESS_MW_BIND.0,
        IBV_QP_STATE = sys::ibv_qp_attr_mask::IBV_QP_STATE.0,
        IBV_QP_ACCESS_FLAGS = sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0,
        IBV_QP_PKEY_INDEX = sys::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0,
        IBV_QP_PORT = sys::ibv_qp_attr_mask::IBV_QP_PORT.0,
        IBV_QP_AV = sys::ibv_qp_attr_mask::IBV_QP_AV.0,
        IBV_QP_PATH_MTU = sys::ibv_qp_attr_mask::IBV_QP_PATH_MTU.0,
        IBV_QP_TIMEOUT = sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT.0,
        IBV_QP_RETRY_CNT = sys::ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0,
        IBV_QP_RNR_RETRY = sys::ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0,
        IBV_QP_RQ_PSN = sys::ibv_qp_attr_mask::IBV_QP_RQ_PSN.0,
        IBV_QP_MAX_QP_RD_ATOMIC = sys::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
        IBV_QP_MIN_RNR_TIMER = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0,
        IBV_QP_SQ_PSN = sys::ibv_qp_attr_mask::IBV_QP_SQ_PSN.0,
        IBV_QP_MAX_DEST_RD_ATOMIC = sys::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0,
        IBV_QP_DEST_QPN = sys::ibv_qp_attr_mask::IBV_QP_DEST_QPN.0,
        IBV_WC_RECV_RDMA_WITH_IMM = sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    });
}
