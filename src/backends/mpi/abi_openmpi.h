// SPDX-License-Identifier: Apache-2.0
// Types and constants of Open MPI's ABI: handles are pointers, and predefined handles are addresses of the library's
// variables. Included only by abi.h; tests/test_mpi_abi.py compares it with Open MPI's mpi.h.
#pragma once

#include <cstddef>

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

extern "C" {
extern struct ompi_predefined_communicator_t ompi_mpi_comm_null, ompi_mpi_comm_world;
extern struct ompi_predefined_group_t ompi_mpi_group_null;
extern struct ompi_predefined_request_t ompi_request_null;
extern struct ompi_predefined_errhandler_t ompi_mpi_errors_return;
extern struct ompi_predefined_op_t ompi_mpi_op_null, ompi_mpi_op_max, ompi_mpi_op_min, ompi_mpi_op_sum,
    ompi_mpi_op_prod, ompi_mpi_op_band, ompi_mpi_op_bor, ompi_mpi_op_bxor;
extern struct ompi_predefined_datatype_t ompi_mpi_datatype_null, ompi_mpi_int8_t, ompi_mpi_int16_t, ompi_mpi_int32_t,
    ompi_mpi_int64_t, ompi_mpi_uint8_t, ompi_mpi_uint16_t, ompi_mpi_uint32_t, ompi_mpi_uint64_t, ompi_mpi_float,
    ompi_mpi_double, ompi_mpi_c_float_complex, ompi_mpi_c_double_complex;
}

constexpr int MPI_SUCCESS = 0;
constexpr int MPI_ERR_TRUNCATE = 15;
constexpr int MPI_ANY_SOURCE = -1;
constexpr int MPI_THREAD_SERIALIZED = 2;
constexpr int MPI_THREAD_MULTIPLE = 3;
constexpr int MPI_MAX_ERROR_STRING = 256;
constexpr int MPI_MAX_LIBRARY_VERSION_STRING = 256;
void* const MPI_IN_PLACE = reinterpret_cast<void*>(1);
constexpr MPI_T_cvar_handle MPI_T_CVAR_HANDLE_NULL = nullptr;

const MPI_Comm MPI_COMM_NULL = reinterpret_cast<MPI_Comm>(&ompi_mpi_comm_null);
const MPI_Comm MPI_COMM_WORLD = reinterpret_cast<MPI_Comm>(&ompi_mpi_comm_world);

const MPI_Group MPI_GROUP_NULL = reinterpret_cast<MPI_Group>(&ompi_mpi_group_null);

const MPI_Request MPI_REQUEST_NULL = reinterpret_cast<MPI_Request>(&ompi_request_null);

const MPI_Errhandler MPI_ERRORS_RETURN = reinterpret_cast<MPI_Errhandler>(&ompi_mpi_errors_return);

const MPI_Op MPI_OP_NULL = reinterpret_cast<MPI_Op>(&ompi_mpi_op_null);
const MPI_Op MPI_MAX = reinterpret_cast<MPI_Op>(&ompi_mpi_op_max);
const MPI_Op MPI_MIN = reinterpret_cast<MPI_Op>(&ompi_mpi_op_min);
const MPI_Op MPI_SUM = reinterpret_cast<MPI_Op>(&ompi_mpi_op_sum);
const MPI_Op MPI_PROD = reinterpret_cast<MPI_Op>(&ompi_mpi_op_prod);
const MPI_Op MPI_BAND = reinterpret_cast<MPI_Op>(&ompi_mpi_op_band);
const MPI_Op MPI_BOR = reinterpret_cast<MPI_Op>(&ompi_mpi_op_bor);
const MPI_Op MPI_BXOR = reinterpret_cast<MPI_Op>(&ompi_mpi_op_bxor);

const MPI_Datatype MPI_DATATYPE_NULL = reinterpret_cast<MPI_Datatype>(&ompi_mpi_datatype_null);
const MPI_Datatype MPI_INT8_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_int8_t);
const MPI_Datatype MPI_INT16_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_int16_t);
const MPI_Datatype MPI_INT32_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_int32_t);
const MPI_Datatype MPI_INT64_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_int64_t);
const MPI_Datatype MPI_UINT8_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_uint8_t);
const MPI_Datatype MPI_UINT16_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_uint16_t);
const MPI_Datatype MPI_UINT32_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_uint32_t);
const MPI_Datatype MPI_UINT64_T = reinterpret_cast<MPI_Datatype>(&ompi_mpi_uint64_t);
const MPI_Datatype MPI_FLOAT = reinterpret_cast<MPI_Datatype>(&ompi_mpi_float);
const MPI_Datatype MPI_DOUBLE = reinterpret_cast<MPI_Datatype>(&ompi_mpi_double);
const MPI_Datatype MPI_C_FLOAT_COMPLEX = reinterpret_cast<MPI_Datatype>(&ompi_mpi_c_float_complex);
const MPI_Datatype MPI_C_DOUBLE_COMPLEX = reinterpret_cast<MPI_Datatype>(&ompi_mpi_c_double_complex);
