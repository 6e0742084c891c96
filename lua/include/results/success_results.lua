--[[ success_results: keeps the results of jobs that succeed, and lets the parts end what else ends with these jobs.
Each job's line is decided separately.

The lines of jobs that were claimed together are alike, up to their places in line and the digests of their calls.
Comparing texts is cheaper than reading fields.

Meta: remembers audit
Later: backlog_bytes backlog_max_bytes
Uses: call(now_text) meta(facts fact) state(field_in) results(keep_outcome lists_of_kept grow_alike) digits(digits)
]]

local FULL = 43       -- `+`, before the digest of a result that the event carries
local NO_VALUE = 33   -- `!`, before the reason why there is no result; no JSON begins with it
local DIGEST_LENGTH = 32
local BEHIND_ALIKE = '^%d+ since=%d+$'   -- the rest of a line after ` seq=`, if it has neither a deadline nor a reason
local CALL = ' call='

--- End a job that succeeded, and keep its result; see end_successes. Returns false if nothing else ends with it. If the
--- next job may end in the same way, it returns what keep_outcome returned, and the fence as JSON for the
--- event. Otherwise it returns nil, and the next job's line must be read.
local function end_success(id, line, events, at, value, note)
  local is_tied, once, keep = decide_parts(id, nil, line, 'succeeded'), nil, nil
  if facts.remembers then
    once, keep = field_in(line, ' once='), field_in(line, ' keep=')
  end
  if not once and not keep then
    if is_tied then
      return nil
    end
    return false
  end
  local fence, more, is_usual = field_in(line, ' fence='), keep and ' task=' .. field_in(line, ' task='), false
  if keep and not value then
    more = more .. ' value=not_kept'
  elseif keep and value:byte() == NO_VALUE then
    value, more = nil, more .. ' value=' .. value:sub(2)
  elseif keep and note and note ~= '' then
    local ending = '"]'
    is_usual = not is_tied and #note == DIGEST_LENGTH and note:byte() ~= FULL
    if note:byte() == FULL then
      note = note:sub(2)
      if facts.audit == 'on' and fact('backlog_bytes') < fact('backlog_max_bytes') then
        ending, more = '",' .. cjson.encode(value) .. ']', more .. ' audit=full'
      end
    end
    events[at] = '["' .. id .. '","' .. fence .. '","' .. note .. ending
  end
  local kept_alike = keep_outcome(id, 'succeeded', now_text, fence, once, once and field_in(line, CALL), keep, more, value)
  if is_usual then
    return kept_alike, '","' .. fence .. '","'
  end
  return nil
end

--- Return the two texts that the lines of jobs that were claimed together have in common: up to the digest of the call,
--- and from there up to the place in line. Without a digest, return the beginning up to the place alone. Return nil if
--- other fields than `since` follow the place.
local function alike_from(line)
  local _, last = line:find(' seq=', 1, true)
  if not last or not line:find(BEHIND_ALIKE, last + 1) then
    return nil, nil
  end
  local _, at = line:find(CALL, 1, true)
  if not at then
    return line:sub(1, last), nil
  elseif line:find(' ', at + 1, true) ~= at + DIGEST_LENGTH + 1 then
    return nil, nil
  end
  return line:sub(1, at), line:sub(at + DIGEST_LENGTH + 1, last)
end

--- End jobs that succeeded. `lines` are those of the call's records, in order; false for a refused record. `given` has,
--- by the same index, the results to keep: JSON, or `!` and the reason why there is no result. `notes` has the digest
--- of each result, for the job's event. If `+` comes before the digest, the event gets the result as well, unless the
--- log is at its bound. `ids` and `events` are those of the jobs that succeeded.
local function end_successes(ids, lines, events, given, notes)
  local at = 0
  local alike, behind   -- what the line that was read last has in common with lines like it, if nothing ends with its job, or the usual…
  local digest_at, behind_at, place_at   -- where the digest begins in such a line, the text behind it, and the place in line…
  local told, fenced    -- …and what `end_success` returned for it
  local beginning, ending   -- the texts of the result's line around the digest of the call
  local kept_lines, kept_marks, kept_values   -- the lists of the results that are like the one that was kept last…
  local until_ms, is_remembered, how_many, line_bytes, value_bytes = nil, nil, 0, 0, 0   -- …and how much of them is not counted yet
  for i = 1, #lines do
    local line = lines[i]
    if line then
      at = at + 1
      local id, value, note = ids[at], given[i], notes[i]
      local is_alike
      if behind then
        -- The digest has no space, so no field can be hidden in it.
        is_alike = line:find(alike, 1, true) == 1 and line:find(' ', digest_at, true) == behind_at and line:find(behind, behind_at, true) == behind_at
          and line:find(BEHIND_ALIKE, place_at)
      else
        is_alike = alike and line:find(alike, 1, true) == 1 and line:find(BEHIND_ALIKE, #alike + 1)
      end
      if is_alike and told and value and note and #note == DIGEST_LENGTH and value:byte() ~= NO_VALUE then
        events[at] = '["' .. id .. fenced .. note .. '"]'
        local kept_line
        if ending then
          kept_line = beginning .. line:sub(digest_at, behind_at - 1) .. ending .. digits(#value)
        else
          kept_line = beginning .. digits(#value)
        end
        local next_at = #kept_lines + 1
        kept_lines[next_at], kept_lines[next_at + 1] = id, kept_line
        kept_marks[next_at], kept_marks[next_at + 1] = until_ms, id
        next_at = #kept_values + 1
        kept_values[next_at], kept_values[next_at + 1] = id, value
        how_many, line_bytes, value_bytes = how_many + 1, line_bytes + #kept_line, value_bytes + #value
      elseif not is_alike or told then
        if how_many > 0 then
          grow_alike(how_many, line_bytes, value_bytes, is_remembered)
          how_many, line_bytes, value_bytes = 0, 0, 0
        end
        told, fenced = end_success(id, line, events, at, value, note)
        alike, behind, beginning, ending = nil, nil, nil, nil
        if told ~= nil then
          alike, behind = alike_from(line)
          if behind then
            digest_at, behind_at = #alike + 1, #alike + 1 + DIGEST_LENGTH
            place_at = behind_at + #behind
          end
        end
        if told then
          beginning, ending = told.beginning, told.behind
          until_ms, is_remembered = told.until_ms, told.is_remembered
          kept_lines, kept_marks, kept_values = lists_of_kept()
        end
      end
    end
  end
  if how_many > 0 then
    grow_alike(how_many, line_bytes, value_bytes, is_remembered)
  end
end
