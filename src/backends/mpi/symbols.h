// SPDX-License-Identifier: Apache-2.0
// The symbols of an MPI library: bound at run time by the library's handle, so that two MPI libraries in one process
// cannot be mistaken for each other. Included only by the declarations of the ABIs.
#pragma once

#include <string>

namespace mcr::mpi {

/// A symbol that the module needs. Every object is static and adds itself to a list.
class Symbol {
 public:
  explicit Symbol(const char* name);
  Symbol(const Symbol&) = delete;
  Symbol& operator=(const Symbol&) = delete;

  /// Loads the library of this path and finds all symbols in it. Call before any of them is used, by one thread at a
  /// time; another call for the same library changes nothing. Throws Error(Unavailable) with the loader's reason, with
  /// the symbols that the library lacks, or if the module is bound to another library.
  static void bind(const std::string& path);
  /// A symbol that the bound library may lack: its address, or null.
  static void* optional(const char* name);

  const char* name() const { return name_; }

 protected:
  void* address() const { return address_; }

 private:
  const char* name_;
  Symbol* next_;
  void* address_ = nullptr;
};

template <class Signature>
class Function;

/// A function of the library, called like one.
template <class Result, class... Parameters>
class Function<Result(Parameters...)> : public Symbol {
 public:
  using Pointer = Result (*)(Parameters...);
  using Symbol::Symbol;

  Result operator()(Parameters... values) const { return reinterpret_cast<Pointer>(address())(values...); }
};

/// A handle that is the address of one of the library's variables.
template <class Handle>
class Predefined : public Symbol {
 public:
  using Type = Handle;
  using Symbol::Symbol;

  operator Handle() const { return static_cast<Handle>(address()); }
};

}  // namespace mcr::mpi
