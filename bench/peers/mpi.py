"""OpenMPI's MPI_Bcast, over shared memory in both of its ways, and over TCP."""

import shutil

from harness.case import BULK, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, ROOT, Failed, json_of, run
from harness.squall import objects


class Mpi(Contestant):
    guarantee = "none after a failure: the job ends"
    packages = ["openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"]

    def __init__(self, name: str, *options: str):
        self.name = name
        self.options = options

    def build(self) -> None:
        if not shutil.which("mpicc.openmpi"):
            raise Failed("OpenMPI is not installed")
        BUILD.mkdir(parents=True, exist_ok=True)
        run(["mpicc.openmpi", "-O2", "-o", BUILD / "mpi", ROOT / "bench" / "peers" / "mpi.c"])

    def takes(self, case: Case) -> bool:
        return case.kind == BULK

    def measure(self, case: Case) -> Figure:
        start = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1", *self.options]
        return json_of(run([*start, "-np", case.members, BUILD / "mpi", case.size, objects(case.size)]))["median_ns"]


SHM = [
    Mpi("mpi cma", "--mca", "btl", "self,vader"),
    Mpi("mpi copy", "--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"),
]
TCP = [Mpi("mpi tcp", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")]
