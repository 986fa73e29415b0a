// SPDX-License-Identifier: Apache-2.0
// Prints what HEADER declares for each line of FACTS: types by their mangled names, integers, and variables of the
// library by their symbols. tests/test_mpi_abi.py compiles it against our declarations, with OURS, and against a
// library's mpi.h.
#include HEADER

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <typeinfo>

#ifdef OURS
mcr::mpi::Symbol::Symbol(const char* name) : name_(name), next_(nullptr) {}
using namespace mcr::mpi;
#endif

namespace {

template <class T>
void type(const char* name) {
  if constexpr (std::is_function_v<T>) {
    std::printf("%s: %s\n", name, typeid(T).name());
  } else {
    std::printf("%s: %s, %zu bytes aligned to %zu\n", name, typeid(T).name(), sizeof(T), alignof(T));
  }
}

// Our declarations give the names of the library's symbols.
template <class T>
concept Named = requires(const T& what) { what.name(); };

template <Named T>
void value(const char* name, const T& what) {
  if constexpr (requires { typename T::Pointer; }) {
    std::printf("%s: %s\n", name, typeid(typename T::Pointer).name());
  } else {
    std::printf("%s: %s, %s\n", name, typeid(typename T::Type).name(), what.name());
  }
}

template <class T>
  requires(!Named<T>)
void value(const char* name, T what) {
  Dl_info info{};
  if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    std::printf("%s: %lld, %zu bytes\n", name, static_cast<long long>(what), sizeof(T));
  } else if constexpr (std::is_function_v<std::remove_pointer_t<T>>) {
    std::printf("%s: %s\n", name, typeid(T).name());
  } else if (dladdr(what, &info) != 0 && info.dli_sname != nullptr) {
    std::printf("%s: %s, %s\n", name, typeid(T).name(), info.dli_sname);
  } else {
    std::printf("%s: %s, %td\n", name, typeid(T).name(), reinterpret_cast<std::intptr_t>(what));
  }
}

}  // namespace

#define FIELD(name) std::printf("%s: at %zu\n", #name, offsetof(MPI_Status, name));
#define TYPE(name) type<name>(#name);
#define VALUE(name) value(#name, name);

int main() {
#include FACTS
}
