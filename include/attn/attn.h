/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attn.h  libattn: paged attention and Multi-head Latent Attention as one C library.
 *
 * Include this header and link libattn. Five calls compute one layer on the CPU:
 *
 *     attn_context_create()   a device and its threads                    backend.h
 *     attn_plan_create()      once per kind of layer                      problem.h, plan.h
 *     attn_cache_write()      new keys and values into the paged cache    cache.h
 *     attn_plan_schedule()    once per step                               plan.h
 *     attn_run()              once per layer                              plan.h
 *
 * Around them: attn_pool (pool.h) manages blocks, attn_geometry (geometry.h) gives pages of one size to layers that
 * differ, attn_workspaces (workspace.h) manages the working memory of several micro-batches, attn_explain() (backend.h)
 * is the dry run with reasons, attn_merge() (merge.h) joins partial results, mla.h has the calls for latent caches,
 * comm.h holds what later versions build. status.h has the codes and messages of failing calls, tensor.h how tensors
 * are borrowed.
 *
 * Rules of every call: tensors are borrowed DLPack views whose strides are used as given; structs start with their size
 * and an _INIT initialiser; a zero means the default except where 0 is a value; a failing call returns a status, writes
 * one line into the optional message and leaves its outputs untouched. The library never prints, exits or aborts.
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include "backend.h"
#include "cache.h"
#include "comm.h"
#include "geometry.h"
#include "merge.h"
#include "mla.h"
#include "plan.h"
#include "pool.h"
#include "problem.h"
#include "status.h"
#include "tensor.h"
#include "workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

/** The version of the library that is linked, "0.1.0". Never NULL; static storage. */
ATTN_API const char *attn_version(void);

#ifdef __cplusplus
}
#endif
#endif
