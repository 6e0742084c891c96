--[[ idempotency: answers repeated calls. A remembered id (see include/results/results) is a duplicate although its job
has ended. A call repeats an earlier one only if it has the same task and arguments.

`remember` of a kind is the time in ms, from now, for which its ids are remembered. The digest of such a record is
followed by ` =` and the call's digest, 32 hex digits, or by ` =` alone if calls are not compared. If its kind has
`unclaimed`, a job that left before its first claim makes the record a duplicate, too, as long as the job's outcome is
kept: a call that comes late must not begin that job again.

The lists `calls` and `plain` have both digests by record. `remembered` has, by record, the line in `results` of an id
that is a duplicate; `stale` the line of any other id; `alive` the lines of jobs that are alive; `left` the ids that jobs
give up in this call; `noted`, by id, the job that the id means since this call; `unclaimed` the records whose kind has
it.

Keys: results state
Later: results_max results_max_bytes results_bytes
Lists: alive calls left noted plain remembered stale unclaimed
Uses: call(now now_text) parts(list_of) meta(fact) batch(read_many)
    results(keep_line keep_outcome drop_line forget_line once_in is_kept)
]]

local lists = {}
local DIGEST_LENGTH = 32
local CALLED_LENGTH = 2 * DIGEST_LENGTH + #' ='   -- of a job's digest, followed by that of its call

--- Return whether a job that left before its first claim makes a record a duplicate, too.
local function counts_unclaimed(i)
  return lists.unclaimed ~= nil and lists.unclaimed[i] ~= nil
end

--- Remove the call's digest from a record's digest. Returns the rest; nil if the digest is invalid.
local function want_memory(i, digest, unclaimed)
  local plain, call_digest
  if #digest == CALLED_LENGTH and digest:find('^ =%x+$', DIGEST_LENGTH + 1) then
    plain, call_digest = digest:sub(1, DIGEST_LENGTH), digest:sub(-DIGEST_LENGTH)
  else
    plain, call_digest = digest:match('^(.*) =(%x*)$')
  end
  if plain then
    local plain_by, calls = lists.plain or list_of(lists, 'plain'), lists.calls or list_of(lists, 'calls')
    plain_by[i], calls[i] = plain, call_digest
    if unclaimed then
      local records = lists.unclaimed or list_of(lists, 'unclaimed')
      records[i] = true
    end
  end
  return plain
end

--- Note what `results` has for the ids of records. `places` are the records, in the order of `lines`; nil: of each record
--- in order.
local function note_remembered(lines, places)
  for k = 1, #lines do
    local line = lines[k]
    if line then
      local i = places and places[k] or k
      list_of(lists, (once_in(line) or counts_unclaimed(i) and is_kept(line)) and 'remembered' or 'stale')[i] = line
    end
  end
end

--- Read the lines and jobs of the ids. `live` says, by record, whether its job is alive.
local function read_remembered(ids, live)
  local calls = lists.calls or {}
  local absent, places, compared, compared_at = {}, {}, {}, {}
  for i = 1, #ids do
    if live[i] then
      if calls[i] then
        compared[#compared + 1], compared_at[#compared_at + 1] = ids[i], i
      end
      places.has_gaps = true
    end
  end
  if not places.has_gaps then   -- nearly all calls
    note_remembered(read_many(results, ids), nil)
    return
  end
  for i = 1, #ids do
    if not live[i] then
      absent[#absent + 1], places[#places + 1] = ids[i], i
    end
  end
  note_remembered(read_many(results, absent), places)
  local lines = read_many(state, compared)
  for k = 1, #compared do
    list_of(lists, 'alive')[compared_at[k]] = lines[k]
  end
end

--- Return the reply to a call that would make the queue remember more ids than its bound; else nil. Calls with ids that
--- are remembered already are answered even at the bound.
local function refuse_full(live)
  if not lists.calls then
    return nil
  end
  local remembered, is_new = lists.remembered or {}, false
  for i in pairs(lists.calls) do
    if not live[i] and not remembered[i] then
      is_new = true
      break
    end
  end
  local size = is_new and redis.call('HLEN', results)
  if size and size >= fact('results_max') then
    return {'refused', 'results_full', size, fact('results_max'), 'results_max'}
  elseif size and fact('results_bytes') + RESULT_COST * size >= fact('results_max_bytes') then
    return {'refused', 'results_full', size, fact('results_max_bytes'), 'results_max_bytes'}
  end
  return nil
end

--- Note that a job gives up its id: later records of this call may take it.
local function leave_id(id)
  list_of(lists, 'left')[id] = true
end

--- Return whether a job has given up its id in this call.
local function has_left(id)
  return lists.left ~= nil and lists.left[id] ~= nil
end

--- Return whether the id of a record is remembered.
local function is_id_remembered(i)
  return lists.remembered ~= nil and lists.remembered[i] ~= nil
end

--- Return whether Redis remembers ids whose jobs are no longer alive.
local function knows_ids()
  return lists.any == true
end

--- Return whether this call knows any id whose job is not alive and that a record may not have.
local function knows_taken_ids()
  return lists.remembered ~= nil or lists.noted ~= nil
end

--- Return a record's digest without the call's digest, which want_memory has removed; and the call's digest.
local function plain_digest(i)
  return lists.plain[i], lists.calls[i]
end

--- Return whether a record may not have its id, since a job that is alive has the id, or the id is remembered, or this
--- call has noted another job for it; and what this call has noted.
local function is_taken_id(i, id, is_live)
  if not lists.any then
    return is_live, nil
  end
  local noted = lists.noted and lists.noted[id]
  return is_live and not has_left(id) or is_id_remembered(i) or noted ~= nil, noted
end

--- Return whether this call asks for ids to be remembered.
local function has_calls()
  return lists.calls ~= nil
end

--- Return the outcome of a record whose id is taken, and the job that the id means, if that job has another id. `first`
--- is the record of this call that took the id, if one did. `noted` is what this call has noted for the id, if
--- anything: the job that the id means, and the record that asked for it, unless that job has replaced the record's
--- job.
local function same_or_not(i, first, noted)
  local calls, remembered, alive = lists.calls or {}, lists.remembered or {}, lists.alive or {}
  local line = remembered[i] or alive[i]
  local mine, known = calls[i], line and line:match(' call=(%x+)') or calls[first or noted and noted.record]
  if mine and mine ~= '' and known and known ~= '' and known ~= mine then
    return 'mismatch', '-'
  end
  if noted then
    return 'held', noted.job
  end
  local same = remembered[i] and remembered[i]:match('^same job=(%S+)')
  if same then
    return 'held', same
  end
  return 'duplicate', '-'
end

--- Return the fields about the id in an accepted job's line; and, as JSON for its event, the time until which the id is
--- remembered, and the call's digest, if calls are compared. `window` is in ms.
local function memory_of(i, window)
  local once, call_digest = now + window, lists.calls[i]
  if call_digest == '' then
    return ' once=' .. once, once, nil
  end
  return ' once=' .. once .. ' call=' .. call_digest, once, '"' .. call_digest .. '"'
end

--- Forget an id's previous job, since a job with this id is accepted.
local function take_id(i, id)
  if not lists.stale and not lists.left then
    return
  end
  local line = lists.stale and lists.stale[i]
  if line then
    forget_line(id, line)
  elseif has_left(id) then
    drop_line(id)
  end
end

--- Note that another job has replaced a job that waited, and that the id of the replaced job means the other job from
--- now on. `job` is the record of the replaced job.
local function note_replaced(old, job, id)
  local is_remembered = job.once and tonumber(job.once) > now
  if is_remembered or job.keep then
    if is_remembered then
      list_of(lists, 'noted')[old] = {job = id}
    end
    keep_outcome(old, (is_remembered and 'same' or 'replaced') .. ' job=' .. id, now_text, nil, job.once, job.call, job.keep, '')
  end
end

--- Note that another job, which holds the name that a record asks for, takes the place of the record's job: the
--- record's id means that job, too.
local function note_same(i, id, holder, window)
  local noted = list_of(lists, 'noted')
  if lists.calls[i] and not noted[id] then
    noted[id] = {record = i, job = holder}
    take_id(i, id)
    local once = memory_of(i, window)
    keep_line(id, 'same job=' .. holder .. ' at=' .. now_text .. once, now + window)
  end
end
