--[[ results: keeps what outlives jobs: ids that a producer may repeat, and results for clients that wait.

While a job with the field `once` in its line lives, and up to that instant, another job of its id is a duplicate. When
such a job leaves Redis, its id gets a field in `results`, and a member in `kept` whose score is the instant at which
both are forgotten. If its result is kept for a shorter time than its id, the score is first the end of the result, and
then that of the id. An id is in `jobs` or in `results`, never in both. The field is one line:

    OUTCOME at=MS [fence=F] [once=MS] [call=DIGEST]     succeeded at=1795225746504 fence=1795225746504-88
    once=1795311906504 call=70c5…
    same job=ID at=MS once=MS [call=DIGEST]             this id means the unique job ID

OUTCOME is succeeded, cancelled, expired or dead; `at` is the time since which the job has this outcome, `fence` that of
the claim that ended so. A line without `once` makes no id a duplicate. A job that left before its first claim is not
remembered: it has done nothing.

A job whose result is kept (the field `keep` of its line) leaves such a line, too, claimed or not. The line goes on with
`task=NAME until=MS`, and with `bytes=N` if `returned` has the result, or `value=WHY` if it has not; `audit=full` says
that the log has the result. A job that another one replaced leaves `replaced job=ID at=MS until=MS`.

`kept_bytes` in `meta` counts the bytes that are kept for clients that wait (load_of). If they exceed `kept_max_bytes`,
the result that expires next is removed: its line then has `value=evicted`, and `evicted` in `meta` counts it. A line
without a result is deleted, unless its id is remembered. Results of this call are not removed; but if there is not
enough room even then, they are not written, and their lines have `value=full`.

The fact `remembers` says that the queue has had jobs of either kind. `results_bytes` in `meta` counts the bytes of all
fields of `results`. Lists: `kept_lines` and `kept_marks`, ids with their lines and instants; `kept_values`, ids and
results; `forgotten`, ids; `emptied`, ids that lose their result; `growth`, by how much `results_bytes`, `kept_bytes`
and `evicted` grow, in this order.

Fact: remembers
With: results kept returned
Later: results_bytes kept_bytes kept_max_bytes evicted
Unread: results kept returned
Lists: emptied forgotten growth kept_lines kept_marks kept_values
Uses: call(now now_text) parts(list_of) meta(fact set_fact read_now) state(field_in)
    batch(call_many add_many set_many read_many) digits(digits)
]]

local lists = {}
local LOOKED_AT = '255'   -- index of the last result that is read to make room, from 0
local last_keep, last_until   -- the last time for which a result is kept, and its end as text: often the same for many jobs of a call
local last_line, last_load    -- a line and its load: jobs that ended in one call often have the same line

local function reset()
  last_keep, last_until, last_line, last_load = nil, nil, nil, nil
end

--- Return, from the line of an id, the time until which the id is remembered, if it is in the future; else nil. A
--- client may have written any text there.
local function once_in(line)
  local once = whole_number(field_in(line, ' once='))
  return once and once > now and once or nil
end

--- Return whether a line has the outcome of a job, and the time until which the outcome is kept is in the future.
local function is_kept(line)
  local ends = whole_number(field_in(line, ' until='))
  return ends ~= nil and ends > now
end

--- Return the bytes that a line adds to `kept_bytes`: those of its result and, if its id is not remembered, those of
--- the line and its overhead.
local function load_of(line)
  if line ~= last_line then
    last_line, last_load = line, tonumber(field_in(line, ' bytes=')) or 0
    if line:find(' until=', 1, true) and not line:find(' once=', 1, true) then
      last_load = last_load + #line + RESULT_COST
    end
  end
  return last_load
end

--- Add bytes to `results_bytes`, and load to `kept_bytes`.
local function grow(bytes, load)
  local growth = list_of(lists, 'growth')
  growth[1] = (growth[1] or 0) + bytes
  growth[2] = (growth[2] or 0) + load
end

--- Subtract a line that is deleted.
local function shrink(line)
  grow(-#line, -load_of(line))
end

--- Check and read the keys that this file will write.
local function meet_results()
  if not lists.kept_lines then
    check_keys()
    read_now('results_bytes')
    read_now('kept_bytes')
    list_of(lists, 'kept_lines')
  end
end

--- Keep a line, until this instant, for an id that has no line. `load` is that of the line, if the caller knows it.
local function keep_line(id, line, until_ms, load)
  meet_results()
  local lines, marks = list_of(lists, 'kept_lines'), list_of(lists, 'kept_marks')
  lines[#lines + 1], lines[#lines + 2] = id, line
  marks[#marks + 1], marks[#marks + 2] = until_ms, id
  grow(#line, load or load_of(line))
end

--- Keep a line and its result, until this instant, for an id that has no line.
local function keep_result(id, line, until_ms, value)
  keep_line(id, line, until_ms)
  local list = list_of(lists, 'kept_values')
  list[#list + 1], list[#list + 2] = id, value
end

--- Keep the line of a job that leaves Redis, if its id is remembered or its result is kept. `once`, `call_digest` and
--- `keep` are from the job's line; `more` is the part of the new line about the result; `value` is written into
--- `returned`. Returns what is needed to keep the result of a job that ends in the same way: the text of its line before
--- the digest of its call, and the text from there up to the size of its result (without a digest, the first text is up
--- to the size, and the second one is missing); the instant until which the line is kept; and whether its id is
--- remembered. Returns nil if no result is kept.
local function keep_outcome(id, outcome, at, fence, once, call_digest, keep, more, value)
  local line, until_ms, load = outcome .. ' at=' .. at .. (fence and ' fence=' .. fence or ''), '0', 0
  once = once and whole_number(once)
  local is_remembered = once and once > now
  local upto_digest = nil
  if is_remembered then
    until_ms = digits(once)
    line = line .. ' once=' .. until_ms
    if call_digest then
      line = line .. ' call='
      upto_digest = line
      line = line .. call_digest
    end
  elseif not keep then
    return nil
  end
  local alike
  if keep then
    if keep ~= last_keep then
      last_keep, last_until = keep, digits(now + (whole_number(keep) or 0))
    end
    line = line .. more .. ' until=' .. last_until
    if value or tonumber(until_ms) < tonumber(last_until) then
      until_ms = last_until
    end
    if value then
      line = line .. ' bytes='
      alike = {
        beginning = upto_digest or line, behind = upto_digest and line:sub(#upto_digest + #call_digest + 1),
        until_ms = until_ms, is_remembered = is_remembered,
      }
      load = #value
      line = line .. digits(load)
      local list = list_of(lists, 'kept_values')
      list[#list + 1], list[#list + 2] = id, value
    end
    if not is_remembered then
      load = load + #line + RESULT_COST
    end
  end
  keep_line(id, line, until_ms, load)
  return alike
end

--- Remove the line that this call wrote for a job, since a later record takes its id.
local function drop_line(id)
  local lines, marks = lists.kept_lines or {}, lists.kept_marks
  for at = 1, #lines, 2 do
    if lines[at] == id then
      shrink(lines[at + 1])
      for _ = 1, 2 do
        table.remove(lines, at)
        table.remove(marks, at)
      end
      return
    end
  end
end

--- Return whether this call changes `results`.
local function keeps_results()
  return lists.kept_lines ~= nil
end

--- Return the lists to which a caller may add results that are like one for which keep_outcome returned a table: ids
--- with lines, instants with ids, and ids with results. The caller then calls grow_alike.
local function lists_of_kept()
  return lists.kept_lines, lists.kept_marks, lists.kept_values
end

--- Count results that were added to lists_of_kept: how many, the bytes of their lines, and those of their values.
local function grow_alike(how_many, lines, values, is_remembered)
  local growth = lists.growth
  growth[1], growth[2] = growth[1] + lines, growth[2] + (is_remembered and values or values + lines + how_many * RESULT_COST)
end

--- Delete the line of an id.
local function forget_line(id, line)
  meet_results()
  local forgotten = list_of(lists, 'forgotten')
  forgotten[#forgotten + 1] = id
  shrink(line)
end

--- Return a line with `reason` in place of its result; nil if it has no result.
local function without_value(line, reason)
  local other, found = line:gsub(' bytes=%d+', ' value=' .. reason)
  if found == 0 then
    return nil
  end
  grow(#other - #line, load_of(other) - load_of(line))
  return other
end

--- Forget an id that has expired, or only its result if the id is remembered for longer.
local function let_go(id, line)
  local once = once_in(line)
  if not once then
    forget_line(id, line)
    return
  end
  meet_results()
  local marks, other = list_of(lists, 'kept_marks'), without_value(line, 'expired')
  marks[#marks + 1], marks[#marks + 2] = digits(once), id
  if other then
    local lines, emptied = lists.kept_lines, list_of(lists, 'emptied')
    lines[#lines + 1], lines[#lines + 2] = id, other
    emptied[#emptied + 1] = id
  end
end

--- Forget ids and results that have expired, at most `most` of them. Returns whether more may be left.
local function forget_over(most)
  local ids = redis.call('ZRANGEBYSCORE', kept, '-inf', now_text, 'LIMIT', '0', digits(most))
  local lines = read_many(results, ids)
  for i = 1, #ids do
    let_go(ids[i], lines[i] or '')
  end
  return #ids == most
end

--- Return whether more bytes are kept than `kept_max_bytes`.
local function is_too_much()
  return fact('kept_bytes') + lists.growth[2] > fact('kept_max_bytes')
end

--- Remove the result of an id. Returns false if that makes no room: the id has no result, or one that is shorter than
--- the reason in its place.
local function evict_value(id, line)
  local other = line:gsub(' bytes=%d+', ' value=evicted')
  local room = load_of(line) - load_of(other)
  if room <= 0 then
    return false
  end
  grow(#other - #line, -room)
  local growth = lists.growth
  growth[3] = (growth[3] or 0) + 1
  local lines, emptied = lists.kept_lines, list_of(lists, 'emptied')
  lines[#lines + 1], lines[#lines + 2] = id, other
  emptied[#emptied + 1] = id
  return true
end

--- Leave out results of this call for which there is no room.
local function leave_out_values()
  local lines, list, left = lists.kept_lines, list_of(lists, 'kept_values'), 0
  local at_of = {}
  for at = 1, #lines, 2 do
    at_of[lines[at]] = at + 1
  end
  for at = 1, #list, 2 do
    local place = at_of[list[at]]
    local other = is_too_much() and without_value(lines[place], 'full')
    if other then
      lines[place] = other
    else
      list[left + 1], list[left + 2] = list[at], list[at + 1]
      left = left + 2
    end
  end
  for at = #list, left + 1, -1 do
    list[at] = nil
  end
end

--- Remove the results that expire next, if there is no room for the results of this call.
local function check()
  if not lists.growth or lists.growth[2] <= 0 or not is_too_much() then
    return
  end
  read_now('evicted')
  local gone = {}
  for _, ids in ipairs({lists.forgotten or {}, lists.emptied or {}}) do
    for i = 1, #ids do
      gone[ids[i]] = true
    end
  end
  local ids, ends = {}, {}
  local found = redis.call('ZRANGE', kept, '0', LOOKED_AT, 'WITHSCORES')
  for at = 1, #found, 2 do
    ids[#ids + 1], ends[#ends + 1] = found[at], tonumber(found[at + 1])
  end
  local lines = read_many(results, ids)
  for i = 1, #ids do
    if not is_too_much() then
      return
    end
    local id, line = ids[i], lines[i]
    if line and not gone[id] then
      if ends[i] <= now then
        let_go(id, line)
      elseif not evict_value(id, line) and not line:find(' once=', 1, true) then
        forget_line(id, line)
      end
    end
  end
  leave_out_values()
end

local function write()
  call_many('HDEL', results, lists.forgotten)
  call_many('HDEL', returned, lists.forgotten)
  call_many('HDEL', returned, lists.emptied)
  call_many('ZREM', kept, lists.forgotten)
  call_many('HSET', results, lists.kept_lines)
  if lists.kept_values then
    set_many(returned, lists.kept_values)
  end
  if lists.kept_marks then
    add_many(kept, lists.kept_marks)
  end
  local growth = lists.growth
  if growth then
    set_fact('results_bytes', math.max(0, fact('results_bytes') + growth[1]))
    if growth[2] ~= 0 then
      set_fact('kept_bytes', math.max(0, fact('kept_bytes') + growth[2]))
    end
    if growth[3] then
      set_fact('evicted', fact('evicted') + growth[3])
    end
  end
end

--- Keep the id and the result of a job that ends, if the job's line says so. The id of a job that was never claimed is
--- not remembered, since the job has done nothing. The results of jobs that succeeded are in the call, see
--- include/results/success_results.
local function decide(id, _, job, outcome, fence)
  if outcome == nil or outcome == 'dies' or outcome == 'succeeded' then
    return false
  end
  local once, keep = job.claim and job.once, job.keep
  if once or keep then
    local more = keep and ' task=' .. job.task .. (job.reason and ' reason=' .. job.reason or '')
    keep_outcome(id, outcome, outcome == 'dead' and job.since or now_text, fence, once, job.call, keep, more)
    return true
  end
  return false
end
