"""The peers: programs of others that do something like what Squall does, each behind the same small interface."""

from .aeron import AeronCluster, AeronIpc
from .corosync import Corosync
from .cyclonedds import CycloneDds
from .etcd import Etcd
from .iceoryx2 import Iceoryx2, Iceoryx2Singly
from .jgroups import JGroups
from .mpi import SHM as BULK_SHM
from .mpi import TCP as BULK_TCP
from .zeromq import ZeroMq

# Systems that order messages totally, on three nodes.
ORDER = [AeronCluster(), JGroups(), Corosync(), Etcd()]

# Those of them that have it on disk.
DURABLE = [AeronCluster(sync=True), Etcd()]

# One publisher, some subscribers.
PUBLISH = [AeronIpc(), Iceoryx2(), ZeroMq()]

# Topics.
TOPICS = [CycloneDds(), Iceoryx2Singly()]

# Large objects from one process to all others.
BULK = [*BULK_SHM, *BULK_TCP]
