//! External clients: processes that read or send a subgroup's messages through a member, without joining the group.
//!
//! A client is in no view. It causes no view change when it connects or disconnects, and the group never waits for
//! it. It needs the members' configuration, of which cluster, secret, contacts and subgroups matter; the connection
//! proves the secret and is encrypted like those between members.
//!
//! - An [`Observer`] receives what one member delivers: messages in order, from the time when it connects, and the
//!   views in between. The member keeps a bounded queue for it. Messages that do not fit are dropped, and the
//!   observer learns how many it has lost at that place. If its member ends, the observer connects to another one,
//!   and reports that messages may be missing in between; none is delivered twice.
//! - A [`Publisher`] sends messages through a member that is a sender and whose application has not taken the sending
//!   end ([`crate::SubgroupHandle::sender`]), such as `squall node`. It returns when all members have delivered them,
//!   so a full window slows only the client. If the connection breaks and the member lives, messages are sent again
//!   and count once. If the member dies, messages in flight may or may not be delivered, and the error reports their
//!   number ([`PublishError`]); with [`Publisher::set_resend`] they are sent again through another member.
//! - A [`Replay`] reads a durable subgroup from a position on, from its beginning if wanted: what was delivered before, and then
//!   what is delivered. The member reads its log for it, so nothing is lost however slow the reader is; and positions are the
//!   same at all members, so it continues with another one where it was. The application notes [`Replay::position`], and gets each
//!   message once, over its own restarts, too.
//! - A [`MemberChannel`] carries messages between a process and a member's application, which gives them their meaning
//!   ([`crate::Builder::on_client`]).
//!
//! For the first three the subgroup must be one for messages: its members have set an upcall for it, or take its deliveries.

mod channel;
mod connection;
mod error;
mod hub;
mod lease;
mod observer;
mod observing;
mod publisher;
mod publishing;
mod replay;
mod replaying;
mod served;
mod wire;

pub use crate::slot::SubgroupView;
pub use channel::{ClientChannel, MemberChannel};
pub use error::{ExternalError, PublishError};
pub use observer::{Observed, Observer, ObserverOptions};
pub use publisher::Publisher;
pub use replay::{Replay, ReplayOptions};
#[doc(hidden)]
pub use wire::read_foreign;

pub(crate) use hub::{ClientServices, Hub};
pub(crate) use lease::SenderLease;
pub(crate) use served::ServedSubgroup;
