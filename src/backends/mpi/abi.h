// SPDX-License-Identifier: Apache-2.0
// Declarations of the part of MPI that is used, so that building the module of each ABI needs no MPI. Names and
// signatures are the standard's; types and constants are those of the ABI that MCR_MPI_ABI names. With MCR_MPI_VERSION
// >= 4 functions take 64-bit counts (MPI_Bcast_c), else int counts.
#pragma once

#include MCR_MPI_ABI

extern "C" {

int MPI_Init_thread(int*, char***, int, int*);
int MPI_Initialized(int*);
int MPI_Finalize();
int MPI_Finalized(int*);
int MPI_Query_thread(int*);
int MPI_Get_library_version(char*, int*);
int MPI_Error_class(int, int*);
int MPI_Error_string(int, char*, int*);

int MPI_Comm_create_group(MPI_Comm, MPI_Group, int, MPI_Comm*);
int MPI_Comm_dup(MPI_Comm, MPI_Comm*);
int MPI_Comm_free(MPI_Comm*);
int MPI_Comm_group(MPI_Comm, MPI_Group*);
int MPI_Comm_rank(MPI_Comm, int*);
int MPI_Comm_size(MPI_Comm, int*);
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler);
int MPI_Group_incl(MPI_Group, int, const int*, MPI_Group*);
int MPI_Group_free(MPI_Group*);

int MPI_Type_contiguous(int, MPI_Datatype, MPI_Datatype*);
int MPI_Type_create_struct(int, const int*, const MPI_Aint*, const MPI_Datatype*, MPI_Datatype*);
int MPI_Type_commit(MPI_Datatype*);
int MPI_Type_free(MPI_Datatype*);
int MPI_Op_free(MPI_Op*);

int MPI_Test(MPI_Request*, int*, MPI_Status*);
int MPI_Cancel(MPI_Request*);
int MPI_Request_free(MPI_Request*);

int MPI_T_init_thread(int, int*);
int MPI_T_finalize();
int MPI_T_cvar_get_index(const char*, int*);
int MPI_T_cvar_handle_alloc(int, void*, MPI_T_cvar_handle*, int*);
int MPI_T_cvar_handle_free(MPI_T_cvar_handle*);
int MPI_T_cvar_read(MPI_T_cvar_handle, void*);
int MPI_T_cvar_write(MPI_T_cvar_handle, const void*);

int MPI_Barrier(MPI_Comm);
int MPI_Ibarrier(MPI_Comm, MPI_Request*);

// Declares a collective's blocking and non-blocking functions: the parameters before the communicator, with `suffix`
// for the width of the counts.
#define MCR_MPI_COLLECTIVE(name, iname, suffix, ...) \
  int MPI_##name##suffix(__VA_ARGS__, MPI_Comm);     \
  int MPI_##iname##suffix(__VA_ARGS__, MPI_Comm, MPI_Request*);

#define MCR_MPI_COUNTED(suffix, Count, Displ)                                                                          \
  MCR_MPI_COLLECTIVE(Bcast, Ibcast, suffix, void*, Count, MPI_Datatype, int)                                           \
  MCR_MPI_COLLECTIVE(Reduce, Ireduce, suffix, const void*, void*, Count, MPI_Datatype, MPI_Op, int)                    \
  MCR_MPI_COLLECTIVE(Allreduce, Iallreduce, suffix, const void*, void*, Count, MPI_Datatype, MPI_Op)                   \
  MCR_MPI_COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, suffix, const void*, void*, Count, MPI_Datatype,     \
                     MPI_Op)                                                                                           \
  MCR_MPI_COLLECTIVE(Reduce_scatter, Ireduce_scatter, suffix, const void*, void*, const Count*, MPI_Datatype, MPI_Op)  \
  MCR_MPI_COLLECTIVE(Allgather, Iallgather, suffix, const void*, Count, MPI_Datatype, void*, Count, MPI_Datatype)      \
  MCR_MPI_COLLECTIVE(Allgatherv, Iallgatherv, suffix, const void*, Count, MPI_Datatype, void*, const Count*,           \
                     const Displ*, MPI_Datatype)                                                                       \
  MCR_MPI_COLLECTIVE(Alltoall, Ialltoall, suffix, const void*, Count, MPI_Datatype, void*, Count, MPI_Datatype)        \
  MCR_MPI_COLLECTIVE(Alltoallv, Ialltoallv, suffix, const void*, const Count*, const Displ*, MPI_Datatype, void*,      \
                     const Count*, const Displ*, MPI_Datatype)                                                         \
  MCR_MPI_COLLECTIVE(Gather, Igather, suffix, const void*, Count, MPI_Datatype, void*, Count, MPI_Datatype, int)       \
  MCR_MPI_COLLECTIVE(Gatherv, Igatherv, suffix, const void*, Count, MPI_Datatype, void*, const Count*, const Displ*,   \
                     MPI_Datatype, int)                                                                                \
  MCR_MPI_COLLECTIVE(Scatter, Iscatter, suffix, const void*, Count, MPI_Datatype, void*, Count, MPI_Datatype, int)     \
  MCR_MPI_COLLECTIVE(Scatterv, Iscatterv, suffix, const void*, const Count*, const Displ*, MPI_Datatype, void*, Count, \
                     MPI_Datatype, int)                                                                                \
  int MPI_Isend##suffix(const void*, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);                           \
  int MPI_Irecv##suffix(void*, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

#if MCR_MPI_VERSION >= 4
using MPI_User_function_c = void(void*, void*, MPI_Count*, MPI_Datatype*);
int MPI_Op_create_c(MPI_User_function_c*, int, MPI_Op*);
int MPI_Get_elements_c(const MPI_Status*, MPI_Datatype, MPI_Count*);
MCR_MPI_COUNTED(_c, MPI_Count, MPI_Aint)
#else
using MPI_User_function = void(void*, void*, int*, MPI_Datatype*);
int MPI_Op_create(MPI_User_function*, int, MPI_Op*);
int MPI_Get_elements_x(const MPI_Status*, MPI_Datatype, MPI_Count*);
MCR_MPI_COUNTED(, int, int)
#endif

#undef MCR_MPI_COUNTED
#undef MCR_MPI_COLLECTIVE

}  // extern "C"
