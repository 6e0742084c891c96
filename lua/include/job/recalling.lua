--[[ recalling: ids that a producer may repeat (see include/job/remembered). A job whose id is remembered is a duplicate, though the job
that had the id has ended; and a call with such an id is the same one only if task and arguments are.

`remember` of a kind is how long ids are remembered, in ms from now. Behind the digest of such a record stands ` =` and what its call is compared by, 32 hex
digits, or nothing: it is not compared. The `seldom` lists `calls` and `plain` have both by record; `recalled` has by record what `results`
says of an id that is remembered, `stale` the same of one that no longer is, `alive` the lines of jobs that are alive; `left` has the ids
that jobs give up in this call, `noted` what the call has noted of others that are not accepted.

Keys: results state
Later: results_max results_max_bytes results_bytes
Lists: alive calls left noted plain recalled stale
Reads: remembered(kept_lines kept_marks)
Uses: call(now now_text) seldom(seldom seldom_list) meta(fact) batch(read_many) remembered(shrink keep_line memory forget_line once_in)
]]

--- What a record's own digest is, without what its call is compared by; nil if that is invalid.
local function want_memory(i, digest)
  local plain, call_digest = digest:match('^(.*) =(%x*)$')
  if plain then
    seldom_list('plain')[i], seldom_list('calls')[i] = plain, call_digest
  end
  return plain
end

--- Read what is known of the ids. `live` says by record whether its job is alive.
local function recall(ids, live)
  local calls = seldom.calls or {}
  local absent, places, compared, compared_at = {}, {}, {}, {}
  for i = 1, #ids do
    if not live[i] then
      absent[#absent + 1], places[#places + 1] = ids[i], i
    elseif calls[i] then
      compared[#compared + 1], compared_at[#compared_at + 1] = ids[i], i
    end
  end
  local lines = read_many(results, absent)
  for k = 1, #absent do
    local line = lines[k]
    if line and once_in(line) then
      seldom_list('recalled')[places[k]] = line
    elseif line then
      seldom_list('stale')[places[k]] = line
    end
  end
  lines = read_many(state, compared)
  for k = 1, #compared do
    seldom_list('alive')[compared_at[k]] = lines[k]
  end
end

--- The reply to a call that would have more remembered than the queue may; else nil. What is remembered already is answered at the bound, too.
local function refuse_full(live)
  local recalled, is_new = seldom.recalled or {}, false
  for i in pairs(seldom.calls) do
    is_new = is_new or not live[i] and not recalled[i]
  end
  local size = is_new and redis.call('HLEN', results)
  if size and size >= fact('results_max') then
    return {'refused', 'results_full', size, fact('results_max'), 'results_max'}
  elseif size and fact('results_bytes') + RESULT_COST * size >= fact('results_max_bytes') then
    return {'refused', 'results_full', size, fact('results_max_bytes'), 'results_max_bytes'}
  end
  return nil
end

--- What becomes of a record whose id is taken: its outcome, and the job that stands if it has another id. `first` is the record of this call
--- that took the id, if one did; `noted` is what this call has noted of it, if anything: the job that stands for it, and the
--- record that asked for it, unless that job has replaced it.
local function same_or_not(i, first, noted)
  local calls, recalled, alive = seldom.calls or {}, seldom.recalled or {}, seldom.alive or {}
  local line = recalled[i] or alive[i]
  local mine, known = calls[i], line and line:match(' call=(%x+)') or calls[first or noted and noted.record]
  if mine and mine ~= '' and known and known ~= '' and known ~= mine then
    return 'mismatch', '-'
  end
  if noted then
    return 'held', noted.job
  end
  local same = recalled[i] and recalled[i]:match('^same job=(%S+)')
  if same then
    return 'held', same
  end
  return 'duplicate', '-'
end

--- What the line of an accepted job says of its memory; and what its event does, as JSON: until when, and what its call is compared by, if it
--- is. `window` is in ms.
local function memory_of(i, window)
  local once, call_digest = now + window, seldom.calls[i]
  if call_digest == '' then
    return ' once=' .. once, once, nil
  end
  return ' once=' .. once .. ' call=' .. call_digest, once, '"' .. call_digest .. '"'
end

--- The result of a replaced job is not kept: a later record has its id.
local function drop_line(id)
  local lines, marks = seldom.kept_lines or {}, seldom.kept_marks
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

--- A job of this id is accepted, so what was known of another one is forgotten.
local function take_id(i, id)
  local line = seldom.stale and seldom.stale[i]
  if line then
    forget_line(id, line)
  elseif seldom.left and seldom.left[id] then
    drop_line(id)
  end
end

--- A job that waited is replaced by another one, which stands for its id, too. `job` is its record.
local function note_replaced(old, job, id)
  local is_remembered = job.once and tonumber(job.once) > now
  if is_remembered or job.keep then
    if is_remembered then
      seldom_list('noted')[old] = {job = id}
    end
    memory.keep(old, (is_remembered and 'same' or 'replaced') .. ' job=' .. id, now_text, nil, job.once, job.call, job.keep, '')
  end
end

--- Another job stands in the place of a record's, which has its name; it stands for this id, too.
local function note_same(i, id, holder, window)
  local noted = seldom_list('noted')
  if seldom.calls[i] and not noted[id] then
    noted[id] = {record = i, job = holder}
    take_id(i, id)
    local once = memory_of(i, window)
    keep_line(id, 'same job=' .. holder .. ' at=' .. now_text .. once, now + window)
  end
end
