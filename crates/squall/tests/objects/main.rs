//! Replicated objects, whose members are threads of one process (Derecho appendix A; RamCast §2.2).

mod object;
mod object_by_tcp;
mod object_clients;
mod object_joins;
mod object_served;
mod object_transfer;
mod sharded;
