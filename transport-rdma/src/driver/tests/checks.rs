//! What holds after every step of a schedule, when everything rests, and when nothing is left.

use super::schedule::{Schedule, Trouble};
use super::world::SIDES;

impl Schedule {
    /// After every step: credits are conserved, and nobody may use a receive that is not there.
    pub(super) fn check(&self) {
        for link in &self.world.links {
            for side in SIDES {
                let this = &link.sides[side];
                let Some(driver) = &this.driver else { continue };
                let share = driver.share.host.receives.share(driver.share.id);
                let (pending, back) = (driver.lent, driver.given_back.unwrap_or_default());
                let (accounted, window, outstanding) = this.connection.turn(&mut Vec::new(), |turn| {
                    let receive = *turn.link().endpoint.credits().1;
                    let accounted = receive.outstanding().0 + receive.in_use().0 + receive.owed().0;
                    (accounted, receive.window().0, receive.outstanding().0)
                });
                assert_eq!(accounted, window, "every receive is in one place");
                assert_eq!(share.0, window + pending.0 + back.0, "a share is what its connection has");
                let other = &link.sides[1 - side];
                if other.driver.is_some() {
                    let available = other
                        .connection
                        .turn(&mut Vec::new(), |turn| turn.link().endpoint.credits().0.available().0);
                    assert!(
                        available <= outstanding,
                        "{available} credits, of which {outstanding} were given"
                    );
                }
            }
        }
        for host in &self.world.hosts {
            let (posted, free, shares) = host.receives.accounts();
            assert_eq!(free + shares, posted, "every receive is somebody's or free");
        }
    }

    /// When nothing moves: what has come to rest.
    pub(super) fn check_rest(&self) {
        if matches!(self.trouble, Trouble::Fault | Trouble::Drop) {
            return;
        }
        assert!(self.strike.is_none(), "the peer did what it was to do");
        // A hostile peer leaves its own host as it likes.
        let hosts = if self.trouble == Trouble::Hostile { 1 } else { self.world.hosts.len() };
        for host in &self.world.hosts[..hosts] {
            let (posted, _) = host.receives();
            assert_eq!(host.adapter.shared_posted(), posted as usize, "every receive is posted again");
            if self.trouble == Trouble::None {
                assert_eq!(host.adapter.counters().not_ready, 0, "a message met no receive");
            }
            if self.trouble != Trouble::Hostile {
                assert_eq!(host.adapter.counters().refused, 0, "a write was not allowed");
            }
        }
        for link in self.world.links.iter().skip(usize::from(self.trouble == Trouble::Hostile)) {
            for side in SIDES {
                let (this, other) = (&link.sides[side], &link.sides[1 - side]);
                assert!(this.failure.is_none(), "it failed: {:?}", this.failure);
                let (under_way, offers, position, delivered, available) =
                    this.connection.turn(&mut Vec::new(), |turn| {
                        assert!(turn.is_idle(), "no call is open");
                        let link = turn.link();
                        let endpoint = &link.endpoint;
                        let available = endpoint.credits().0.available();
                        (
                            endpoint.under_way(),
                            link.targets.len(),
                            endpoint.position(),
                            endpoint.delivered(),
                            available,
                        )
                    });
                assert_eq!(under_way, (0, 0), "bodies and memory that are under way\n{}", self.left());
                assert_eq!((offers, position), (0, delivered), "memory that is expected, frames that wait");
                let outstanding = other
                    .connection
                    .turn(&mut Vec::new(), |turn| turn.link().endpoint.credits().1.outstanding());
                assert_eq!(available, outstanding, "both sides count the same credits");
            }
        }
    }

    /// When every driver is gone, and the connections are still held: nothing is theirs any more.
    pub(super) fn check_left(&self) {
        for (index, host) in self.world.hosts.iter().enumerate() {
            let (landing, leases, kept) = host.pool.used();
            assert_eq!((landing, leases), (0, 0), "host {index}: memory for large messages came back");
            let (left, free) = host.pool.staging_accounts();
            let all = host.options.staging.max(host.pool.message_max());
            assert_eq!(left + free, all, "host {index}: staging came back");
            let (posted, free) = host.receives();
            assert_eq!(posted, free, "host {index}: no connection has receives");
            if matches!(self.trouble, Trouble::Fault) {
                // What connections may be given is there, on a device that works.
                let works = host.pool.register_one(1).is_some();
                let physical = host.adapter.shared_posted();
                assert!(
                    !works || physical >= posted as usize,
                    "host {index}: {physical} of {posted} receives"
                );
                continue;
            }
            assert_eq!(host.adapter.shared_posted(), posted as usize, "host {index}: receives are posted");
            let receives = posted as usize * host.options.receive_size as usize;
            let staging = all - left;
            let registered = self.world.fabric.registered(host.adapter.id()) as usize;
            let expected = receives + staging + kept;
            // Whole pages, for some receives at a time.
            let waste = posted.div_ceil(32) as usize * crate::memory::PAGE;
            let accounted = (expected..=expected + waste).contains(&registered);
            assert!(
                accounted,
                "host {index}: {registered} bytes are registered, {expected} in the pool or posted"
            );
        }
    }
}
