// SPDX-License-Identifier: Apache-2.0
// Declarations of the part of MPI that is used, so that building the module of each ABI needs no MPI. Names and
// signatures are the standard's; types and constants are those of the ABI that MCR_MPI_ABI names. With MCR_MPI_VERSION
// >= 4 functions take 64-bit counts (MPI_Bcast_c), else int counts. Symbol::bind() finds them in a library.
#pragma once

#include "backends/mpi/symbols.h"
#include MCR_MPI_ABI

namespace mcr::mpi {

inline Function<int(int*, char***, int, int*)> MPI_Init_thread{"MPI_Init_thread"};
inline Function<int(int*)> MPI_Initialized{"MPI_Initialized"};
inline Function<int()> MPI_Finalize{"MPI_Finalize"};
inline Function<int(int*)> MPI_Finalized{"MPI_Finalized"};
inline Function<int(int*)> MPI_Query_thread{"MPI_Query_thread"};
inline Function<int(char*, int*)> MPI_Get_library_version{"MPI_Get_library_version"};
inline Function<int(int, int*)> MPI_Error_class{"MPI_Error_class"};
inline Function<int(int, char*, int*)> MPI_Error_string{"MPI_Error_string"};

inline Function<int(MPI_Comm, MPI_Group, int, MPI_Comm*)> MPI_Comm_create_group{"MPI_Comm_create_group"};
inline Function<int(MPI_Comm, MPI_Comm*)> MPI_Comm_dup{"MPI_Comm_dup"};
inline Function<int(MPI_Comm*)> MPI_Comm_free{"MPI_Comm_free"};
inline Function<int(MPI_Comm, int, void*, int*)> MPI_Comm_get_attr{"MPI_Comm_get_attr"};
inline Function<int(MPI_Comm, MPI_Group*)> MPI_Comm_group{"MPI_Comm_group"};
inline Function<int(MPI_Comm, int*)> MPI_Comm_rank{"MPI_Comm_rank"};
inline Function<int(MPI_Comm, int*)> MPI_Comm_size{"MPI_Comm_size"};
inline Function<int(MPI_Comm, MPI_Errhandler)> MPI_Comm_set_errhandler{"MPI_Comm_set_errhandler"};
inline Function<int(MPI_Group, int, const int*, MPI_Group*)> MPI_Group_incl{"MPI_Group_incl"};
inline Function<int(MPI_Group*)> MPI_Group_free{"MPI_Group_free"};

inline Function<int(int, MPI_Datatype, MPI_Datatype*)> MPI_Type_contiguous{"MPI_Type_contiguous"};
inline Function<int(int, const int*, const MPI_Aint*, const MPI_Datatype*, MPI_Datatype*)> MPI_Type_create_struct{
    "MPI_Type_create_struct"};
inline Function<int(MPI_Datatype*)> MPI_Type_commit{"MPI_Type_commit"};
inline Function<int(MPI_Datatype*)> MPI_Type_free{"MPI_Type_free"};
inline Function<int(MPI_Op*)> MPI_Op_free{"MPI_Op_free"};

inline Function<int(int, int, MPI_Comm, int*, MPI_Status*)> MPI_Iprobe{"MPI_Iprobe"};
inline Function<int(MPI_Request*, int*, MPI_Status*)> MPI_Test{"MPI_Test"};
inline Function<int(MPI_Request*)> MPI_Cancel{"MPI_Cancel"};
inline Function<int(MPI_Request*)> MPI_Request_free{"MPI_Request_free"};

inline Function<int(int, int*)> MPI_T_init_thread{"MPI_T_init_thread"};
inline Function<int()> MPI_T_finalize{"MPI_T_finalize"};
inline Function<int(const char*, int*)> MPI_T_cvar_get_index{"MPI_T_cvar_get_index"};
inline Function<int(int, void*, MPI_T_cvar_handle*, int*)> MPI_T_cvar_handle_alloc{"MPI_T_cvar_handle_alloc"};
inline Function<int(MPI_T_cvar_handle*)> MPI_T_cvar_handle_free{"MPI_T_cvar_handle_free"};
inline Function<int(MPI_T_cvar_handle, void*)> MPI_T_cvar_read{"MPI_T_cvar_read"};
inline Function<int(MPI_T_cvar_handle, const void*)> MPI_T_cvar_write{"MPI_T_cvar_write"};

inline Function<int(MPI_Comm)> MPI_Barrier{"MPI_Barrier"};
inline Function<int(MPI_Comm, MPI_Request*)> MPI_Ibarrier{"MPI_Ibarrier"};

// Declares a collective's blocking and non-blocking functions: the parameters before the communicator, with `suffix`
// for the width of the counts.
#define MCR_MPI_COLLECTIVE(name, iname, suffix, ...)                                    \
  inline Function<int(__VA_ARGS__, MPI_Comm)> MPI_##name##suffix{"MPI_" #name #suffix}; \
  inline Function<int(__VA_ARGS__, MPI_Comm, MPI_Request*)> MPI_##iname##suffix{"MPI_" #iname #suffix};

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
  inline Function<int(const void*, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)> MPI_Isend##suffix{          \
      "MPI_Isend" #suffix};                                                                                            \
  inline Function<int(void*, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)> MPI_Irecv##suffix{                \
      "MPI_Irecv" #suffix};

#if MCR_MPI_VERSION >= 4
using MPI_User_function_c = void(void*, void*, MPI_Count*, MPI_Datatype*);
inline Function<int(MPI_User_function_c*, int, MPI_Op*)> MPI_Op_create_c{"MPI_Op_create_c"};
inline Function<int(const MPI_Status*, MPI_Datatype, MPI_Count*)> MPI_Get_elements_c{"MPI_Get_elements_c"};
MCR_MPI_COUNTED(_c, MPI_Count, MPI_Aint)
#else
using MPI_User_function = void(void*, void*, int*, MPI_Datatype*);
inline Function<int(MPI_User_function*, int, MPI_Op*)> MPI_Op_create{"MPI_Op_create"};
inline Function<int(const MPI_Status*, MPI_Datatype, MPI_Count*)> MPI_Get_elements_x{"MPI_Get_elements_x"};
MCR_MPI_COUNTED(, int, int)
#endif

#undef MCR_MPI_COUNTED
#undef MCR_MPI_COLLECTIVE

}  // namespace mcr::mpi
