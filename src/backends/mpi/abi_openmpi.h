// SPDX-License-Identifier: Apache-2.0
// Types and constants of Open MPI's ABI: handles are pointers, and predefined handles are addresses of the library's
// variables. Included only by abi.h; tests/test_mpi_abi.py compares it with Open MPI's mpi.h.
#pragma once

#include <cstddef>

#include "backends/mpi/symbols.h"

using MPI_Aint = std::ptrdiff_t;
using MPI_Count = long long;
using MPI_Comm = struct ompi_communicator_t*;
using MPI_Datatype = struct ompi_datatype_t*;
using MPI_Errhandler = struct ompi_errhandler_t*;
using MPI_Group = struct ompi_group_t*;
using MPI_Op = struct ompi_op_t*;
using MPI_Request = struct ompi_request_t*;
using MPI_T_cvar_handle = struct ompi_mpit_cvar_handle_t*;

struct ompi_status_public_t {
  int MPI_SOURCE;
  int MPI_TAG;
  int MPI_ERROR;
  int _cancelled;
  std::size_t _ucount;
};
using MPI_Status = ompi_status_public_t;

namespace mcr::mpi {

inline constexpr int MPI_SUCCESS = 0;
inline constexpr int MPI_ERR_TRUNCATE = 15;
inline constexpr int MPI_ANY_SOURCE = -1;
inline constexpr int MPI_ANY_TAG = -1;
inline constexpr int MPI_TAG_UB = 0;
inline constexpr int MPI_THREAD_SERIALIZED = 2;
inline constexpr int MPI_THREAD_MULTIPLE = 3;
inline constexpr int MPI_MAX_ERROR_STRING = 256;
inline constexpr int MPI_MAX_LIBRARY_VERSION_STRING = 256;
inline void* const MPI_IN_PLACE = reinterpret_cast<void*>(1);
inline constexpr MPI_T_cvar_handle MPI_T_CVAR_HANDLE_NULL = nullptr;

inline Predefined<MPI_Comm> MPI_COMM_NULL{"ompi_mpi_comm_null"};
inline Predefined<MPI_Comm> MPI_COMM_WORLD{"ompi_mpi_comm_world"};

inline Predefined<MPI_Group> MPI_GROUP_NULL{"ompi_mpi_group_null"};

inline Predefined<MPI_Request> MPI_REQUEST_NULL{"ompi_request_null"};

inline Predefined<MPI_Errhandler> MPI_ERRORS_RETURN{"ompi_mpi_errors_return"};

inline Predefined<MPI_Op> MPI_OP_NULL{"ompi_mpi_op_null"};
inline Predefined<MPI_Op> MPI_MAX{"ompi_mpi_op_max"};
inline Predefined<MPI_Op> MPI_MIN{"ompi_mpi_op_min"};
inline Predefined<MPI_Op> MPI_SUM{"ompi_mpi_op_sum"};
inline Predefined<MPI_Op> MPI_PROD{"ompi_mpi_op_prod"};
inline Predefined<MPI_Op> MPI_BAND{"ompi_mpi_op_band"};
inline Predefined<MPI_Op> MPI_BOR{"ompi_mpi_op_bor"};
inline Predefined<MPI_Op> MPI_BXOR{"ompi_mpi_op_bxor"};

inline Predefined<MPI_Datatype> MPI_DATATYPE_NULL{"ompi_mpi_datatype_null"};
inline Predefined<MPI_Datatype> MPI_INT8_T{"ompi_mpi_int8_t"};
inline Predefined<MPI_Datatype> MPI_INT16_T{"ompi_mpi_int16_t"};
inline Predefined<MPI_Datatype> MPI_INT32_T{"ompi_mpi_int32_t"};
inline Predefined<MPI_Datatype> MPI_INT64_T{"ompi_mpi_int64_t"};
inline Predefined<MPI_Datatype> MPI_UINT8_T{"ompi_mpi_uint8_t"};
inline Predefined<MPI_Datatype> MPI_UINT16_T{"ompi_mpi_uint16_t"};
inline Predefined<MPI_Datatype> MPI_UINT32_T{"ompi_mpi_uint32_t"};
inline Predefined<MPI_Datatype> MPI_UINT64_T{"ompi_mpi_uint64_t"};
inline Predefined<MPI_Datatype> MPI_FLOAT{"ompi_mpi_float"};
inline Predefined<MPI_Datatype> MPI_DOUBLE{"ompi_mpi_double"};
inline Predefined<MPI_Datatype> MPI_C_FLOAT_COMPLEX{"ompi_mpi_c_float_complex"};
inline Predefined<MPI_Datatype> MPI_C_DOUBLE_COMPLEX{"ompi_mpi_c_double_complex"};

}  // namespace mcr::mpi
