/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text in windows, for the measurements of `attn-lm perplexity`. Window k is bos, then the ids from COUNTED * k on,
 * WINDOW in all; its last COUNTED ids count. A last window that is not full is dropped.
 */
#ifndef LM_PERPLEXITY_H
#define LM_PERPLEXITY_H

#include "lm_session.h"

enum { PERPLEXITY_WINDOW = 1024, PERPLEXITY_COUNTED = 512 };

typedef struct perplexity {
  lm_session *s;
  lm_needs needs; /**< of a window's sequence */
  lm_ids ids;     /**< of the whole text */
  int32_t bos;
  size_t windows;
  float *logits; /**< of a few positions: a row has as many as the vocabulary has tokens */
} perplexity;

/** Takes a counted position, 0 to COUNTED - 1, the model's logits there, and the id that comes next in the text. */
typedef void (*perplexity_take)(void *context, int32_t position, const float *logits, int32_t id);

/** Reads the text of --file and prepares the session. */
ATTN_NODISCARD attn_status perplexity_open(lm_session *s, perplexity *p, attn_message *message);
/** Safe on a zeroed struct. */
void perplexity_close(perplexity *p);

/** Feeds a window to the session's cache, which is empty before and after. */
ATTN_NODISCARD attn_status perplexity_run(perplexity *p, size_t window, perplexity_take take, void *context,
                                          attn_message *message);

/** log(sum exp(logits)), formed in double; not a number if a logit is not. */
double perplexity_log_sum(const float *logits, int32_t count);

/** Static scales for lm_storage by the largest elements it has measured: divided by the format's range, never 0. */
void perplexity_scales(const perplexity *p, const lm_formats *formats, const float *largest, float *scales);

/** Elements of scales and largest. */
size_t perplexity_scale_count(const perplexity *p);

/** `attn-lm perplexity --all-formats`, on an open text. */
ATTN_NODISCARD attn_status perplexity_compare(perplexity *p, attn_message *message);

#endif
