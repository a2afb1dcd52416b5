/* MPI_Bcast of a large object: `mpi BYTES OBJECTS` prints the median time, barrier to the last rank's end, in ns.
   Every object is another one, and every receiver looks at its ends, as the other contestants do. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, warm_up = 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t bytes = strtoull(argv[1], NULL, 10);
    int objects = atoi(argv[2]);
    char *object = malloc(bytes);
    double *times = calloc(objects, sizeof *times);
    memset(object, rank, bytes);
    for (int i = -warm_up; i < objects; i++) {
        if (rank == 0) {
            memcpy(object, &i, sizeof i);
            memcpy(object + bytes - sizeof i, &i, sizeof i);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime(), mine, last;
        MPI_Bcast(object, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        mine = MPI_Wtime() - begun;
        if (memcmp(object, &i, sizeof i) || memcmp(object + bytes - sizeof i, &i, sizeof i)) {
            fprintf(stderr, "rank %d: another object than %d came\n", rank, i);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Reduce(&mine, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (i >= 0) times[i] = last;
    }
    if (rank == 0) {
        qsort(times, objects, sizeof *times, ascending);
        printf("{\"median_ns\": %.0f}\n", times[objects / 2] * 1e9);
    }
    MPI_Finalize();
    return 0;
}
