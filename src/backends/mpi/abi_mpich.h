// SPDX-License-Identifier: Apache-2.0
// Types and constants of MPICH's ABI, which Intel MPI, Cray MPICH and MVAPICH share: handles are integers. Included
// only by abi.h; tests/test_mpi_abi.py compares it with MPICH's mpi.h.
#pragma once

using MPI_Aint = long;
using MPI_Count = long long;
using MPI_Comm = int;
using MPI_Datatype = int;
using MPI_Errhandler = int;
using MPI_Group = int;
using MPI_Op = int;
using MPI_Request = int;
using MPI_T_cvar_handle = struct MPIR_T_cvar_handle_s*;

struct MPI_Status {
  int count_lo;
  int count_hi_and_cancelled;
  int MPI_SOURCE;
  int MPI_TAG;
  int MPI_ERROR;
};

constexpr int MPI_SUCCESS = 0;
constexpr int MPI_ERR_TRUNCATE = 14;
constexpr int MPI_ANY_SOURCE = -2;
constexpr int MPI_ANY_TAG = -1;
constexpr int MPI_TAG_UB = 0x64400001;
constexpr int MPI_THREAD_SERIALIZED = 2;
constexpr int MPI_THREAD_MULTIPLE = 3;
constexpr int MPI_MAX_ERROR_STRING = 512;
constexpr int MPI_MAX_LIBRARY_VERSION_STRING = 8192;
void* const MPI_IN_PLACE = reinterpret_cast<void*>(-1L);

constexpr MPI_Comm MPI_COMM_NULL = 0x04000000;
constexpr MPI_Comm MPI_COMM_WORLD = 0x44000000;
constexpr MPI_Group MPI_GROUP_NULL = 0x08000000;
constexpr MPI_Request MPI_REQUEST_NULL = 0x2c000000;
constexpr MPI_Errhandler MPI_ERRORS_RETURN = 0x54000001;
constexpr MPI_T_cvar_handle MPI_T_CVAR_HANDLE_NULL = nullptr;

constexpr MPI_Op MPI_OP_NULL = 0x18000000;
constexpr MPI_Op MPI_MAX = 0x58000001;
constexpr MPI_Op MPI_MIN = 0x58000002;
constexpr MPI_Op MPI_SUM = 0x58000003;
constexpr MPI_Op MPI_PROD = 0x58000004;
constexpr MPI_Op MPI_BAND = 0x58000006;
constexpr MPI_Op MPI_BOR = 0x58000008;
constexpr MPI_Op MPI_BXOR = 0x5800000a;

constexpr MPI_Datatype MPI_DATATYPE_NULL = 0x0c000000;
constexpr MPI_Datatype MPI_INT8_T = 0x4c000137;
constexpr MPI_Datatype MPI_INT16_T = 0x4c000238;
constexpr MPI_Datatype MPI_INT32_T = 0x4c000439;
constexpr MPI_Datatype MPI_INT64_T = 0x4c00083a;
constexpr MPI_Datatype MPI_UINT8_T = 0x4c00013b;
constexpr MPI_Datatype MPI_UINT16_T = 0x4c00023c;
constexpr MPI_Datatype MPI_UINT32_T = 0x4c00043d;
constexpr MPI_Datatype MPI_UINT64_T = 0x4c00083e;
constexpr MPI_Datatype MPI_FLOAT = 0x4c00040a;
constexpr MPI_Datatype MPI_DOUBLE = 0x4c00080b;
constexpr MPI_Datatype MPI_C_FLOAT_COMPLEX = 0x4c000840;
constexpr MPI_Datatype MPI_C_DOUBLE_COMPLEX = 0x4c001041;
